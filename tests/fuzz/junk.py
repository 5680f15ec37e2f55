"""What is put in the place of something good: values, names, damage to bytes and to JSON."""

import json

from hypothesis import strategies as st

NAMES = (
    "x|a b|a\nb|a\tb\r|\x1b[31mred\x1b[0m|\x9b1m|$_$|$\\frac{|猫|e\u0301|\u202eevil|\udcff|%s{0}"
)
NAMES += "|<b>&amp;|'\"`|*|None|True|null|[1|{}|-|--|.|..|~|/|../x|a/b|" + "|".join(
    ("y" * 5000, " ")
)
NAMES = [*NAMES.split("|"), ""]
NUMBERS = "0 1 2 3 -1 7 .5 1e-3 -0.0 nan inf -inf 1e400 1e-400 1_0 0x10 1,2 ² ١"
NUMBERS = [*NUMBERS.split(), "9" * 60, "9" * 5000, str(2**31), str(2**63), " 1", ""]
# Files and folders that tests of command lines have, or that are to be made.
PLACES = "runs runs/images images f.npz f.npy d.npz i.npy a.txt labels.npy empty empty.json nowhere"
PLACES = f"{PLACES} nowhere/x.json o.json o.png o.npy o.csv".split()
# What the system allows in an argument, and nothing below "/", where tests have no business.
text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
names = st.sampled_from(NAMES) | text.filter(lambda name: name[:1] != "/")
values = st.sampled_from(NUMBERS) | names | st.sampled_from(PLACES)
OF_JSON = [
    None,
    True,
    [],
    {},
    "",
    0,
    -1,
    5,
    0.5,
    float("nan"),
    float("inf"),
    10**400,
    [""],
    {"": 1},
]
json_values = st.sampled_from(OF_JSON) | names
DEPTH = 20_000  # of JSON that is nested
KINDS = ("flip", "flip", "byte", "cut", "empty", "insert", "remove", "zeros", "twice")
# (kind, place as a share of the whole, number) for `damaged`
damage = st.tuples(st.sampled_from(KINDS), st.floats(0, 1), st.integers(0, 255))


def at(share, things):
    """The one of several things that lies at a share of them."""
    return things[min(int(share * len(things)), len(things) - 1)]


def damaged(content, how):
    kind, share, number = how
    place = min(int(share * len(content)), max(0, len(content) - 1))
    before, after = content[:place], content[place:]
    flipped = after[0] ^ (1 << number % 8) if after else 0
    return {
        "flip": before + bytes([flipped]) + after[1:],
        "byte": before + bytes([number]) + after[1:],
        "cut": before,
        "empty": b"",
        "insert": before + bytes([number]) * (1 + number) + after,
        "remove": before + after[1 + number :],
        "zeros": before + bytes(len(after[: 1 + number])) + after[1 + number :],
        "twice": content + content,
    }[kind]


WHOLE = ("", "5", "[]", "null", '"a"', "{}", "[" * DEPTH, '{"a":' * DEPTH, "\ufeff{}", "{'a': 1}")
WHOLE += ("- a\n- b", "a: &a [*a]", "!!python/object/apply:os.system [ls]", "a: 1\na: 2", "a:\tb")
edit = st.tuples(
    st.lists(st.floats(0, 1), min_size=1, max_size=4),  # the place, as shares of what is there
    st.sampled_from(("rename", "set", "set")),
    json_values,
    names,
)
# Other keys or values in one or two places.
option_edits = st.lists(edit, min_size=1, max_size=2)
# Another text, damaged bytes, or other keys or values.
edits = st.sampled_from(WHOLE) | damage | option_edits


def edited(content, edit):
    if isinstance(edit, str):
        return edit.encode()
    if isinstance(edit, tuple):
        return damaged(content, edit)
    top = [json.loads(content)]
    for shares, action, value, name in edit:
        inner, key = top, 0
        for share in shares:
            if not (part := inner[key]) or not isinstance(part, dict | list):
                break
            inner, key = part, at(share, list(part) if isinstance(part, dict) else range(len(part)))
        if action == "rename" and isinstance(inner, dict):
            inner[name] = inner.pop(key)
        else:
            inner[key] = value
    return json.dumps(top[0]).encode()
