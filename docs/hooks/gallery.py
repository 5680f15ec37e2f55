"""The pictures of docs/results.md as cards, each with its item's title and a link to it."""

import re
from pathlib import Path

from pymdownx.slugs import slugify

MARK = "<!-- gallery -->"
PICTURE = re.compile(r"^!\[.*\]\((.*)\)$", re.MULTILINE)


def cards(results: str) -> str:
    slug, items = slugify(case="lower"), []
    for section in re.split(r"\n###? ", results)[1:]:
        title, found = section.partition("\n")[0], PICTURE.search(section)
        if found:
            alt = re.sub(r"[\[\]]", "", title)
            link = f"[![{alt}]({found[1]})](results.md#{slug(title, '-')})"
            items.append(f"-   {link}\n\n    {title}\n")
    return "\n".join(['<div class="grid cards" markdown>\n', *items, "</div>"])


def on_page_markdown(markdown, page, config, files):
    if MARK not in markdown:
        return markdown
    return markdown.replace(MARK, cards((Path(config.docs_dir) / "results.md").read_text()))
