"""The candidates of `bench tune`, and who is measured by fresh launches at the end."""

import math
from collections.abc import Collection, Mapping, Sequence

from bench.experiments.plan.race import Race
from bench.seams.strategy import LEVELS

FINAL_LAUNCHES = 5  # of each finalist: what a 95 % interval needs to be of use
FEWEST_FINAL = 3  # launches of each finalist, without which there is no verdict
PARENTS = 2  # how many of the best are tried with each switch

Tried = Mapping[tuple[str, tuple[str, ...]], str | None]
"""Which switches, or which level, were tried on which candidate, and the name of what that made; None if they do not
go with it."""


def next_switches(
    race: Race, tried: Tried, allow: Sequence[str], plain: Collection[str] = ()
) -> Sequence[tuple[str, tuple[str, ...]]]:
    """The next candidates when a race is over: the best of ``plain``, those in fp32, at each precision level; then the
    best of all with each switch by itself; then the best of those with all that gained something, the greatest gain
    first; in the end nothing."""
    levels = race.levels()
    if not tried:
        ranked = sorted((name for name in plain if name in levels and name not in race.out), key=levels.__getitem__)
        if products := [(name, (one,)) for name in ranked[:PARENTS] for one in allow if one in LEVELS]:
            return products
    switches = [one for one in allow if one not in LEVELS]
    parents = list(dict.fromkeys(parent for parent, on in tried if not LEVELS.keys() & set(on)))
    parents = parents or race.ranking()[:PARENTS]
    singles: list[tuple[str, tuple[str, ...]]] = [(parent, (switch,)) for parent in parents for switch in switches]
    new = [one for one in singles if one not in tried]
    if new or not singles:
        return new
    reached: dict[str, dict[str, float]] = {parent: {} for parent in parents}  # by parent and switch
    for parent, (switch,) in singles:
        made = tried[parent, (switch,)]
        if made is not None and made in levels and made not in race.out:
            reached[parent][switch] = levels[made]
    best = min(parents, key=lambda parent: min([levels[parent], *reached[parent].values()]))
    gained = {switch: level for switch, level in reached[best].items() if level < levels[best]}
    together = (best, tuple(sorted(gained, key=gained.__getitem__)))
    return [together] if len(gained) > 1 and together not in tried else []


def winner(race: Race, doubtful: Collection[str] = ()) -> str | None:
    """The fastest that is still in. One of ``doubtful``, whose numerics cannot be told, only if all others are clearly
    slower, those too that are no longer in because they were not faster."""
    best, levels = race.best(), race.levels()
    if best is None or best not in doubtful:
        return best
    sure = sorted((one for one in levels if one not in race.out and one not in doubtful), key=levels.__getitem__)
    return next((one for one in sure if not race.clearly_slower(one, best)), best)


def finalists(
    race: Race, peaks_mib: Mapping[str, float], baseline: str | None, doubtful: Collection[str] = ()
) -> tuple[str, ...]:
    """The winner first, then the runner-up, the leanest that is nearly as fast, and the baseline; each once."""
    levels, first = race.levels(), winner(race, doubtful)
    if first is None:
        return ()
    others = [name for name in race.ranking() if name != first]
    lean = leanest(first, race, peaks_mib, doubtful)
    names = [first, *others[:1], lean, baseline if baseline in levels and baseline not in race.out else lean]
    return tuple(dict.fromkeys(names))


def leanest(winner: str, race: Race, peaks_mib: Mapping[str, float], doubtful: Collection[str] = ()) -> str:
    """Of the usable candidates that are nearly as fast as the winner the one with the lowest peak, or the winner."""
    from bench.analyse.between_runs import LEAST_MEMORY
    from bench.analyse.recommendation import LEAN_ENOUGH

    levels = race.levels()
    near = [
        name
        for name in peaks_mib
        if name not in race.out
        and levels.get(name, math.inf) <= levels[winner] - math.log(LEAN_ENOUGH)
        and (name == winner or name not in doubtful)
    ]
    least = min(near, key=peaks_mib.__getitem__, default=winner)
    return least if winner in peaks_mib and peaks_mib[least] < (1 - LEAST_MEMORY) * peaks_mib[winner] else winner
