"""Which faults a round has, and when: drawn from the drill's seed and the round's number alone, so that any round can be run again.

Owns the order: each possible fault is struck once before any is struck again, then the order is drawn again; from the second turn on some
rounds have two faults that overlap.  The first turn begins with one fault of each family: a short drill has something of everything.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Mapping, Sequence

from dledger_drill.plan.model import DrillOptions, FaultChoice, RoundPlan

FIRST_S = (0.2, 1.0)  # of load before the first fault of a round
OVERLAP_S = (0.1, 0.8)  # from the first fault to the second


HoldTimes = Mapping[str, tuple[float, float]]  # fault -> how long it lasts at least and at most


def draw_round(options: DrillOptions, faults: HoldTimes, leading: Collection[str], groups: Sequence[str], number: int) -> RoundPlan:
    """Round ``number``, from 1 on.

    Args:
        options: The drill's options; of them the seed and the share of pairs count.
        faults: Those to draw from.
        leading: Those that a short drill has.
        groups: Names of the replica groups.
        number: Of the round.
    """
    seed = seed_of(options.seed, "round", number)
    draw = random.Random(seed)
    turn, place = divmod(number - 1, len(faults))
    first = _order(options.seed, turn, faults, leading)[place]
    names = [first]
    if turn and len(faults) > 1 and draw.random() < options.pairs:
        names.append(draw.choice([name for name in sorted(faults) if name != first]))
    after_s, choices = draw.uniform(*FIRST_S), []
    for name in names:
        hold_s = draw.uniform(*faults[name])
        choices.append(FaultChoice(name, draw.choice(list(groups)), round(after_s, 3), round(hold_s, 3), draw.getrandbits(32)))
        after_s += draw.uniform(*OVERLAP_S)
    return RoundPlan(number, seed, tuple(choices))


def seed_of(seed: int, *place: object) -> int:
    """A seed of its own for a part of the drill."""
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _order(seed: int, turn: int, faults: HoldTimes, leading: Collection[str]) -> list[str]:
    names = sorted(faults)
    random.Random(seed_of(seed, "turn", turn)).shuffle(names)
    return names if turn else sorted(names, key=lambda name: name not in leading)
