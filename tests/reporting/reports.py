"""Run folders without training, and pages as their parts."""

import base64
import html
import io
import json
import re

from PIL import Image


def make_run(folder, seed=0, results=None, steps=5, **options):
    """Write config.json, metrics.jsonl and eval/*.json of a run with some options and results."""
    config = {"name": folder.name, "seed": seed, "model": {"dim": 32}, "data": {"data_dir": "x"}}
    for key, value in options.items():
        part, _, option = key.partition("__")
        if option:
            config.setdefault(part, {})[option] = value
        else:
            config[key] = value
    commands = [f"python run.py pretrain --name {folder.name}{end}" for end in (" --seed 0", "")]
    sessions = [{"device": {"count": 1}, "command": command} for command in commands]
    record = {"config": config, "sessions": sessions, "data_digest": "d"}
    (folder / "eval").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(record))
    lines = [{"step": step, "loss": 1 / step, "align": 0.5} for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for stem, result in (results or {}).items():
        (folder / "eval" / f"{stem}.json").write_text(json.dumps(result))
    return folder


def parse(path):
    """Return the tags of a page, its texts, and its pictures, which must be valid PNGs."""
    page = path.read_text(encoding="utf-8")
    body = page.split("</style>")[1]
    texts = [html.unescape(text).strip() for text in re.split("<[^>]*>", body)]
    pictures = []
    for data in re.findall(r'src="data:image/png;base64,([^"]*)"', page):
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        picture.load()
        assert picture.format == "PNG"
        pictures.append(picture)
    return set(re.findall(r"<(\w+)", body)), [text for text in texts if text], pictures
