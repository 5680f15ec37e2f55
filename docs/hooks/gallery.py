"""Fill the gallery: a card with picture, title and link for each item of docs/results.md."""

import re
from pathlib import Path

from pymdownx.slugs import slugify

MARK = "<!-- gallery -->"
PICTURE = re.compile(r"^!\[.*\]\((.*)\)$", re.MULTILINE)


def cards(results: str) -> str:
    slug = slugify(case="lower")
    items = []
    for section in re.split(r"\n###? ", results)[1:]:
        title = section.partition("\n")[0]
        picture = PICTURE.search(section)
        if picture:
            alt = re.sub(r"[\[\]]", "", title)
            link = f"[![{alt}]({picture[1]})](results.md#{slug(title, '-')})"
            items.append(f"-   {link}\n\n    {title}\n")
    return "\n".join(['<div class="grid cards" markdown>\n', *items, "</div>"])


def on_page_markdown(markdown, page, config, files):
    if MARK not in markdown:
        return markdown
    return markdown.replace(MARK, cards((Path(config.docs_dir) / "results.md").read_text()))
