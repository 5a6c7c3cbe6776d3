"""What ``bench bisect --package`` launches without a command: a small convolutional network on random images."""

from itertools import pairwise

import torch
from torch import nn

STEPS, IMAGES, WIDTHS = 40, 32, (3, 32, 64, 64)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers: list[nn.Module] = []
    for before, after in pairwise(WIDTHS):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(IMAGES, 3, 32, 32).to(device), torch.randint(10, (IMAGES,)).to(device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
