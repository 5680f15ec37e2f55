"""What a compiled program launches, moves and multiplies, counted in its text."""

import math
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

# Of an H100, measured: bytes copied a second, read and written; FLOP a second of bfloat16 products.
# Float32 products, without tensor cores, by its data sheet.
BANDWIDTH, BFLOAT16, FLOAT32 = 3.0e12, 790e12, 67e12
_HEAD = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([a-z][\w-]*)\((.*)$")
_CALLED = re.compile(r"(?:body|condition|to_apply|calls|\w+_computations?)=\{?((?:%[\w.-]+,? ?)+)")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
_FREE |= {"partition-id", "replica-id", "opt-barrier"}
_PARTS = re.compile(r"algorithm=dot_bf16_bf16_f32(?:_x(\d))?")


class Instruction(NamedTuple):
    shape: str
    kind: str
    operands: list[str]
    line: str


class Launch(NamedTuple):
    """What is started by itself, `times` times: bytes it moves, and FLOP of its products."""

    name: str
    kind: str
    dtype: str
    moved: int
    bfloat16: float
    float32: float
    times: int

    @property
    def seconds(self) -> float:
        """By the roofline: moving and multiplying overlap within a launch, launches do not."""
        products = self.bfloat16 / BFLOAT16 + self.float32 / FLOAT32
        return self.times * max(self.moved / BANDWIDTH, products)


def launches(text: str, branch: Callable = min) -> list[Launch]:
    """Of the text of a compiled program, with its loops' turns.

    Slices read what they give; what is updated in place moves what is put there. A loop of unknown
    length takes one turn.

    Args:
      text: `compiled.as_text()`.
      branch: of a conditional's branches the one of which this is the time.
    """
    computations, entry = _parsed(text)

    def run(name: str, times: int) -> Iterator[Launch]:
        inside = computations[name]
        for own, (shape, kind, operands, line) in inside.items():
            called = re.findall(r"%([\w.-]+)", " ".join(_CALLED.findall(line)))
            if kind == "conditional":
                sides = [list(run(side, times)) for side in called]
                yield from branch(sides, key=lambda side: sum(one.seconds for one in side))
            elif kind in ("while", "call", "async-start"):
                turns = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
                for computation in called:
                    yield from run(computation, times * int(turns[1] if turns else 1))
            elif kind not in _FREE and not kind.endswith("-done"):
                body = computations[called[0]] if kind == "fusion" else {own: inside[own]}
                whole = _size(shape) + sum(_size(inside[x].shape) for x in operands if x in inside)
                of_body = _traffic(body) if kind == "fusion" else whole
                target = re.search(r'custom_call_target="([^"]+)"', line)
                flop = _products(body, body if kind == "fusion" else inside)
                kind, dtype = target[1] if target else kind, shape.lstrip("(").split("[")[0]
                yield Launch(own, kind, dtype, of_body, *flop, times)

    return list(run(entry, 1))


def _parsed(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    computations: dict[str, dict[str, Instruction]] = {}
    entry, lines = "", {}
    for line in text.splitlines():
        if head := _HEAD.match(line):
            lines = computations[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif found := _LINE.match(line):
            name, shape, kind, rest = found.groups()
            operands = re.findall(r"%([\w.-]+)", rest.split(")")[0])
            lines[name] = Instruction(shape, kind, operands, line)
    return computations, entry


def _traffic(body: dict[str, Instruction]) -> int:
    """Bytes that a fusion reads and writes."""

    def read(name: str) -> int:
        total = 0
        for user, (shape, kind, operands, _) in body.items():
            if name not in operands:
                continue
            if kind in ("bitcast", "convert"):
                total += read(user) * _size(body[name].shape) // _size(shape)
            elif kind in ("dynamic-slice", "slice", "gather") and operands[0] == name:
                total += _size(shape)
            elif kind != "dynamic-update-slice" or operands[0] != name:
                return _size(body[name].shape)
        return min(total, _size(body[name].shape))

    def written(name: str) -> int:
        shape, kind, operands, _ = body[name]
        if kind == "tuple":
            return sum(map(written, operands))
        if kind == "bitcast" and operands[0] in body:
            return written(operands[0])
        return _size(body[operands[1]].shape if kind == "dynamic-update-slice" else shape)

    root = next(name for name, one in body.items() if one.line.lstrip().startswith("ROOT "))
    parameters = [name for name, one in body.items() if one.kind == "parameter"]
    return written(root) + sum(map(read, parameters))


def _products(body: dict[str, Instruction], shapes: dict[str, Instruction]) -> tuple[float, float]:
    """FLOP of bfloat16 products, of their parts each, and of others."""
    bfloat16 = other = 0.0
    for shape, kind, operands, line in body.values():
        if kind != "dot":
            continue
        (left,) = _arrays(shapes[operands[0]].shape)
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line)[1].split(",")  # type: ignore[index]
        flop = 2.0 * math.prod(_arrays(shape)[0][1]) * math.prod(left[1][int(i)] for i in axes if i)
        parts = _PARTS.search(line)
        if parts or left[0] == "bf16":
            bfloat16 += flop * int((parts and parts[1]) or 1)
        else:
            other += flop
    return bfloat16, other


def _arrays(shape: str) -> list[tuple[str, list[int]]]:
    found = _ARRAY.findall(shape)
    return [(kind, [int(n) for n in sizes.split(",") if n]) for kind, _, sizes in found]


def _size(shape: str) -> int:
    """Bytes of an array such as `f32[32,128]{1,0}`, or of a tuple of them."""
    bits = [8 if kind == "pred" else int(bits) for kind, bits, _ in _ARRAY.findall(shape)]
    return sum(b * math.prod(n) // 8 for b, (_, n) in zip(bits, _arrays(shape), strict=True))
