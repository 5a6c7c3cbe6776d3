"""The time of an all-reduce, from launches that do nothing else: bus bandwidth, and a fit to reckon with.

The fit has two parts: a latency a for each step of a ring, and a time b for each byte on the busiest link:

    t(B, N) = 2 (N - 1) a + 2 (N - 1) / N · B b

as in Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005). It is by
least squares with squared errors over the time, between absolute and relative ones: 1 KiB tells the latency, and the
largest sizes the bandwidth. Sizes that fit badly weigh less (Huber 1964). All-reduces that run two or three at a time
are fitted in the same way, each with its share of the time: what they hide of the latency is in their a, and what they
take from each other is in their b.

Not every all-reduce is a ring. What NCCL does within NVSwitches (NVLS) takes the same time whatever the number of
ranks: t(B) = 2 a + B b. Each algorithm (:mod:`bench.analyse.algorithms`) has a fit of its own, and so have the sizes on
either side of a break in its times.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.analyse.algorithms import RING, Algorithms, beyond, family
from bench.core.codec import encode
from bench.core.text import size_text
from bench.runs.experiments import BandwidthRecord

Array = NDArray[np.float64]

HUBER = 1.345  # standard deviations up to which an error counts in full: 95 % efficient where errors are normal

ROUNDS = 50

BREAK_SIZES, BREAK_ERROR, BREAK_GAIN = 3, 0.05, 0.5
"""A break, and not noise, has this many sizes on each side, and takes this share of a mean error that is at
least so large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The median time of an all-reduce of ``bytes`` over ``ranks``, and the fastest and slowest sample of it; with
    several ``at_once`` the time of all over their number. ``nominal_gb_s``: of the link, None where unknown.
    ``algorithm``: see :meth:`Algorithms.at`."""

    ranks: int
    bytes: int
    at_once: int = 1
    time_ms: float
    low_ms: float
    high_ms: float
    nominal_gb_s: float | None = None
    algorithm: str | None = ""

    @property
    def family(self) -> str:
        return family(self.algorithm)

    @property
    def bus_gb_s(self) -> float:
        """The bytes that each rank sends and receives, over the time (GB/s, 10^9 bytes): 2 (N - 1) / N · bytes /
        time."""
        return bus_share(self.ranks) * self.bytes / self.time_ms / 1e6

    @property
    def of_nominal(self) -> float | None:
        """The share of the link's nominal speed."""
        return self.bus_gb_s / self.nominal_gb_s if self.nominal_gb_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The fit. ``alpha_ms``: of a step of a ring. ``beta_ms``: of a byte on the busiest link, infinite for no link.

    ``ranks``: the numbers of ranks that it was made of. ``typical``, ``worst``: relative errors, median and largest.
    ``algorithm``: of all of them, empty where it is unknown. ``sizes``: the smallest and the largest (bytes).
    ``pieces``: the fits of parts with a break between them. Where there are some, predictions use them, and the errors
    are theirs. ``at_once``: the fits with two, three, ... all-reduces at a time, as far as they were measured.
    """

    alpha_ms: float
    beta_ms: float
    ranks: tuple[int, ...]
    typical: float
    worst: float
    algorithm: str = ""
    sizes: tuple[int, int] = (0, 0)
    pieces: "tuple[Link, ...]" = ()
    at_once: "tuple[Link, ...]" = ()

    def of(self, algorithm: str | None, size: float) -> "Link | None":
        """The fit that holds for this size; None where no all-reduce of this algorithm is in it."""
        if algorithm is None:
            return None
        fits = [one for one in self.pieces or (self,) if one.algorithm == family(algorithm)]
        return min(fits, key=lambda one: beyond(one.sizes, size), default=None)

    def all_reduce_ms(self, size: float, ranks: int) -> float:
        steps, share = _ways(self.algorithm, ranks)
        return steps * self.alpha_ms + share * size * self.beta_ms

    def broadcast_ms(self, size: float, ranks: int) -> float:
        """From one rank to all, along a binomial tree: the root sends that often."""
        return math.ceil(math.log2(ranks)) * (self.alpha_ms + size * self.beta_ms)

    @property
    def gb_s(self) -> float:
        """The bandwidth that large all-reduces approach (GB/s)."""
        return 1.0 / self.beta_ms / 1e6 if self.beta_ms else math.inf


def bus_share(ranks: int) -> float:
    """How often each byte crosses the busiest link of a ring in an all-reduce: 2 (N - 1) / N."""
    return 2 * (ranks - 1) / ranks


def _ways(algorithm: str, ranks: int) -> tuple[float, float]:
    """Steps one after the other, and how often each byte crosses the busiest link."""
    return (2.0, 1.0) if algorithm.startswith("NVLS") else (2.0 * (ranks - 1), bus_share(ranks))


def samples(records: Iterable[BandwidthRecord], algorithms: Algorithms = RING) -> list[Sample]:
    """Every size of every launch that ended well, by ranks and size, those at once last; of several launches with as
    many ranks the median over all samples."""
    times: dict[tuple[int, int, int], list[float]] = {}
    nominal_gb_s: dict[int, float] = {}
    for record in records:
        if record.status == "ok":
            if record.transport and record.transport.nominal_mbit:
                nominal_gb_s[record.processes] = record.transport.nominal_mbit / 8000
            for size in record.sizes:
                times.setdefault((size.at_once, record.processes, size.bytes), []).extend(size.times_ms)
    return [
        Sample(
            ranks=ranks,
            bytes=size,
            at_once=at_once,
            time_ms=float(np.median(of)),
            low_ms=min(of),
            high_ms=max(of),
            nominal_gb_s=nominal_gb_s.get(ranks),
            algorithm=algorithms.at(ranks, size),
        )
        for (at_once, ranks, size), of in sorted(times.items())
    ]


def fitted(measured: Sequence[Sample]) -> Link | None:
    """The fit of these; None of fewer than three that were alone."""
    fits: list[Link] = []
    while (link := _fitted([one for one in measured if one.at_once == len(fits) + 1])) is not None:
        fits.append(link)
    return replace(fits[0], at_once=tuple(fits[1:])) if fits else None


def _fitted(measured: Sequence[Sample]) -> Link | None:
    """Of an algorithm of which there are fewer than three, nothing is in it."""
    families = [[one for one in measured if one.family == name] for name in sorted({one.family for one in measured})]
    parts = [part for of in families if len(of) >= 3 for part in _unbroken(of)]
    if len(parts) == 1:
        return _line(parts[0], parts[0][0].family)[0]
    if not parts:
        return None
    whole, _ = _line([one for part in parts for one in part], "")
    pieces, errors = zip(*(_line(part, part[0].family) for part in parts), strict=True)
    apart = np.concatenate(errors)
    return replace(whole, pieces=pieces, typical=float(np.median(apart)), worst=float(apart.max()))


def _unbroken(measured: Sequence[Sample]) -> list[Sequence[Sample]]:
    """These, or the parts of them on either side of a break between two sizes, each without another."""
    sizes = sorted({one.bytes for one in measured})
    splits = [
        ([one for one in measured if one.bytes < first], [one for one in measured if one.bytes >= first])
        for first in sizes[BREAK_SIZES : len(sizes) - BREAK_SIZES + 1]
    ]
    error = _error(measured)
    best = min(splits, key=lambda parts: _error(*parts), default=None)
    if best is None or error < BREAK_ERROR or _error(*best) > BREAK_GAIN * error:
        return [measured]
    return [part for half in best for part in _unbroken(half)]


def _error(*parts: Sequence[Sample]) -> float:
    """The mean error of the fits of these parts, relative."""
    return float(np.concatenate([_line(part, part[0].family)[1] for part in parts]).mean())


def _line(measured: Sequence[Sample], algorithm: str) -> tuple[Link, Array]:
    """The fit of these without a break, and their relative errors."""
    times = np.array([one.time_ms for one in measured])
    ways = np.array([_ways(algorithm, one.ranks) for one in measured])
    steps, volume = ways[:, 0], ways[:, 1] * [one.bytes for one in measured]
    rows = np.column_stack([steps, volume]) / times[:, None]
    for part in ([0, 1], [1], [0]):  # neither may be below 0
        coefficients = np.zeros(2)
        coefficients[part] = _huber(rows[:, part], times)
        if (coefficients >= 0.0).all():
            break
    alpha, beta = map(float, coefficients)
    apart = np.abs((alpha * steps + beta * volume) / times - 1.0)
    link = Link(
        alpha_ms=alpha,
        beta_ms=beta,
        ranks=tuple(sorted({one.ranks for one in measured})),
        typical=float(np.median(apart)),
        worst=float(apart.max()),
        algorithm=algorithm,
        sizes=(min(one.bytes for one in measured), max(one.bytes for one in measured)),
    )
    return link, apart


def _huber(rows: Array, importance: Array) -> Array:
    """The coefficients with which rows come closest to 1 (iteratively reweighted least squares)."""
    weights = np.ones(len(rows))
    coefficients: Array = np.zeros(rows.shape[1])
    for _ in range(ROUNDS):
        root, before = np.sqrt(weights * importance), coefficients
        coefficients = np.asarray(np.linalg.lstsq(rows * root[:, None], root, rcond=None)[0], dtype="float64")
        if (coefficients == before).all():
            break
        apart = np.abs(rows @ coefficients - 1.0)
        scale = max(float(np.median(apart)) / 0.6745, 1e-9)
        weights = np.minimum(1.0, HUBER * scale / np.maximum(apart, 1e-12))
    return coefficients


def for_programs(records: Sequence[BandwidthRecord], algorithms: Algorithms = RING) -> dict[str, object]:
    """The samples with their bus bandwidth, the fit over all of them, and over what the ranks talked."""
    measured = samples(records, algorithms)
    link = fitted(measured)
    return {
        "all_reduces": [{**asdict(one), "bus_gb_s": one.bus_gb_s, "of_nominal": one.of_nominal} for one in measured],
        "fit": None if link is None else {**asdict(link), "bus_gb_s": link.gb_s if link.beta_ms else None},
        "transport": next((encode(one.transport) for one in records if one.transport), None),
        "left_out": [{"ranks": one.processes, "reason": one.left_out} for one in records if one.left_out],
        "failed": [{"ranks": one.processes, "reason": one.reason} for one in records if one.status != "ok"],
    }


def sentences(records: Sequence[BandwidthRecord], algorithms: Algorithms = RING) -> list[str]:
    """The fit with its errors, over what the ranks talked, and what is missing."""
    link = fitted(samples(records, algorithms))
    parts = () if link is None else link.pieces or (link,)
    texts = []
    for fit in parts:
        of = "" if len(parts) == 1 else f" of {size_text(fit.sizes[0])} to {size_text(fit.sizes[1])}"
        algorithm = f" ({fit.algorithm}, {', '.join(map(str, fit.ranks))} ranks)" if fit.algorithm else ""
        rate = f"{fit.gb_s:,.2f} GB/s" if fit.beta_ms else "a bandwidth too high to tell"
        step = "an all-reduce's start and end" if fit.algorithm.startswith("NVLS") else "a ring"
        texts.append(
            f"Fit{of}{algorithm}: {1000 * fit.alpha_ms:,.1f} µs a step of {step} and {rate}; it misses the measured "
            f"times by {100 * fit.typical:.0f} % (median) and {100 * fit.worst:.0f} % at most."
        )
    for transport in dict.fromkeys(one.transport for one in records if one.transport):
        over = f" over {transport.interface}" if transport.interface else ""
        nominal = transport.nominal_mbit
        speed = f", nominally {nominal:,.0f} Mbit/s ({nominal / 8000:,.2f} GB/s)" if nominal else ""
        why = f" ({transport.reason})" if transport.reason else ""
        texts.append(f"Transport: {transport.library or transport.backend}{over}{speed}{why}.")
    texts += [f"{why[0].upper()}{why[1:]}." for why in dict.fromkeys(one.left_out for one in records) if why]
    texts += [f"All-reduces over {one.processes} ranks failed: {one.reason}." for one in records if one.status != "ok"]
    return texts
