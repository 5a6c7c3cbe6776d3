# bench as the pods of a PyTorchJob or a TrainJob need it: docker build -t IMAGE .
# Results go to the volume /results. Which torch it is, with or without CUDA, is pip's choice for this machine's platform.
FROM python:3.12-slim

# torch.compile builds kernels on the host that runs them; without the drivers of RDMA devices NCCL takes TCP
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ ibverbs-providers \
    && rm -rf /var/lib/apt/lists/*

COPY . /source
RUN pip install --no-cache-dir /source \
    && useradd --uid 1000 --create-home bench \
    && install --directory --owner=bench --group=bench /results

USER 1000
WORKDIR /results
VOLUME /results
ENTRYPOINT ["python", "-m", "bench"]
CMD ["--help"]
