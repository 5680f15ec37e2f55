"""What a compiled program sends between devices, counted in its text."""

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
    """The collectives of one kind, in one run of a program.

    Attributes:
      count: how often a device takes part in one.
      received: bytes that each device receives, and sends.
    """

    count: int
    received: int


def traffic(text: str, devices: int, branch: Callable = min) -> dict[str, Traffic]:
    """The collectives of a compiled program, as often as its loops run them.

    Args:
      text: of the program of one device, `compiled.as_text()`.
      devices: all of which take part in each collective.
      branch: `min` or `max`: of a conditional's branches, the one that receives least or most.

    Returns:
      What goes through each kind of collective that the program has.

    Raises:
      ValueError: for a loop of unknown length with a collective in it, or one that is split into
        its start and its end, whose results have other shapes.
    """
    entry, computations = _computations(text)

    def received(counts: Counter) -> float:
        return sum(RECEIVED[kind](devices) * size * times for (kind, size), times in counts.items())

    def run(name: str) -> Counter:
        """How often a computation runs each kind of collective with results of each size."""
        counts: Counter = Counter()
        for line in computations[name]:
            found = _COLLECTIVE.match(line)
            if found:
                shape, kind, split = found.groups()
                if split:
                    raise ValueError(f"{kind} is split: {line.strip()[:200]}")
                counts[kind, _bytes(shape)] += 1
            called = [
                run(computation)
                for names in _CALLED.findall(line)
                for computation in re.findall(r"%([\w.-]+)", names)
            ]
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
    return {
        kind: Traffic(of_kind.total(), round(received(of_kind)))
        for kind in RECEIVED
        if (of_kind := Counter({key: n for key, n in counts.items() if key[0] == kind}))
    }


def _computations(text: str) -> tuple[str, dict[str, list[str]]]:
    """The name of the first to run, and the lines of each."""
    entry, computations = "", {}
    for line in text.splitlines():
        begins = _COMPUTATION.match(line)
        if begins:
            lines = computations[begins[2]] = []
            entry = begins[2] if begins[1] else entry
        elif line.startswith(" ") and computations:
            lines.append(line)
    return entry, computations


def _bytes(shape: str) -> int:
    """Of an array such as `f32[32,128]{1,0}`, or a tuple of them."""
    total = 0
    for name, bits, sizes in _ARRAY.findall(shape):
        elements = 1
        for size in filter(None, sizes.split(",")):
            elements *= int(size)
        total += elements * (8 if name == "pred" else int(bits)) // 8
    return total
