"""Replace links that the site has no page for: files outside docs/ and folders become their paths.

A link to a notebook's source becomes a link to its page.
"""

import posixpath
import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([\w./-]+)\)")


def on_page_markdown(markdown, page, config, files):
    def replaced(found):
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found[1]))
        if place.startswith("../"):
            return f"`{place.removeprefix('../')}`"
        if place.endswith(".py"):
            return found[0].replace(".py)", ".md)")
        return f"`docs/{place}/`" if (Path(config.docs_dir) / place).is_dir() else found[0]

    return LINK.sub(replaced, markdown)
