"""What a compiled program sends between devices, counted in its text."""

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

# Bytes that a device receives for each byte of a collective's result, with N devices, where each
# passes on only what others still lack: rings, or any other algorithm that wastes nothing.
RECEIVED = {
    "all-gather": lambda devices: (devices - 1) / devices,
    "all-reduce": lambda devices: 2 * (devices - 1) / devices,
    "reduce-scatter": lambda devices: devices - 1,
    "all-to-all": lambda devices: (devices - 1) / devices,
    "collective-permute": lambda devices: float(devices > 1),
}
_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.-]+) .*\{$")
_COLLECTIVE = re.compile(rf"^ +(?:ROOT )?%[\w.-]+ = (.*?) ({'|'.join(RECEIVED)})(-start)?\(")
_CALLED = re.compile(
    r"\b(?:body|to_apply|calls|(?:branch|true|false)_computations?)=\{?((?:%[\w.-]+(?:, )?)+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


class Traffic(NamedTuple):
    """Collectives of one kind in a program: those of a device, and the bytes that it receives."""

    count: int
    received: int


def traffic(text: str, devices: int, branch: Callable = min) -> dict[str, Traffic]:
    """What goes through each kind of collective of `compiled.as_text()`, with its loops' turns.

    `branch`, `min` or `max`: of a conditional's branches, the one that receives least or most.
    ValueError for a loop of unknown length with a collective in it, or one that is split into its
    start and its end, whose results have other shapes.
    """
    entry, computations = "", {}
    for line in text.splitlines():
        if begins := _COMPUTATION.match(line):
            lines = computations[begins[2]] = []
            entry = begins[2] if begins[1] else entry
        elif line.startswith(" ") and computations:
            lines.append(line)

    def received(counts: Counter) -> float:
        return sum(RECEIVED[kind](devices) * size * times for (kind, size), times in counts.items())

    def run(name: str) -> Counter:
        """How often a computation runs each kind of collective with results of each size."""
        counts: Counter = Counter()
        for line in computations[name]:
            if collective := _COLLECTIVE.match(line):
                shape, kind, split = collective.groups()
                if split:
                    raise ValueError(f"{kind} is split: {line.strip()[:200]}")
                counts[kind, _bytes(shape)] += 1
            names = " ".join(_CALLED.findall(line))
            called = [run(computation) for computation in re.findall(r"%([\w.-]+)", names)]
            if " conditional(" in line:
                called = [branch(called, key=received)]
            times = 1
            if " while(" in line and any(called):
                trips = _TRIPS.search(line)
                if not trips:
                    raise ValueError(f"a loop of unknown length has a collective: {line[:200]}")
                times = int(trips[1])
            for inside in called:
                counts.update({key: times * number for key, number in inside.items()})
        return counts

    counts = run(entry)
    of_kinds = {
        kind: Counter({k: n for k, n in counts.items() if k[0] == kind}) for kind in RECEIVED
    }
    return {kind: Traffic(of.total(), round(received(of))) for kind, of in of_kinds.items() if of}


def _bytes(shape: str) -> int:
    """Of an array such as `f32[32,128]{1,0}`, or a tuple of them."""
    total = 0
    for name, bits, sizes in _ARRAY.findall(shape):
        elements = math.prod(int(size) for size in sizes.split(",") if size)
        total += elements * (8 if name == "pred" else int(bits)) // 8
    return total
