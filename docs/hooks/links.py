"""Links that a site has no page for, to files outside docs/ and to folders, become their paths.

A notebook is linked by its file, and becomes its page.
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
