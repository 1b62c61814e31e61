"""The script that follows the README reads it as a person would: what is run, in which order, and what is left out."""

import subprocess
from pathlib import Path

import pytest

from readme_commands import PAGES, Reader, steps

ROOT = Path(__file__).resolve().parent.parent
PAGE = """# Title

```bash
make demo      # everything
# a comment

export WHERE=here
```

<!-- not run: it needs the network -->
```bash
fullrank download amazon --out downloads/beauty
```

```json
{"shown": 1}
```

```yaml
recipe: mine
```

```python
import math
print(math.pi)
```
"""


def test_what_a_page_says() -> None:
    said = list(steps(PAGE))
    assert [(step.language, step.line, step.why_not) for step in said] == [
        ("bash", 4, ""), ("bash", 7, ""), ("bash", 12, "it needs the network"), ("yaml", 20, ""), ("python", 24, ""),
    ]  # fmt: skip
    assert said[0].text == "make demo      # everything" and said[4].text == "import math\nprint(math.pi)\n"
    assert said[0].block == said[1].block != said[2].block


@pytest.mark.parametrize("page", PAGES)
def test_nearly_all_of_the_pages_is_run(page: str) -> None:
    said = list(steps((ROOT / page).read_text(encoding="utf-8")))
    assert said[0].text.startswith("make ") and {"bash", "python"} <= {step.language for step in said}
    assert len([step for step in said if step.why_not]) <= 3 < len([step for step in said if not step.why_not])


def test_one_shell_for_all_blocks(tmp_path: Path) -> None:
    """A variable lives on, a file that was shown is there for the command that reads it, and a failure is one."""
    reader = Reader(tmp_path)
    text = (
        "```bash\nexport WHERE=here\necho $WHERE > said\n```\n```yaml\na: 1\n```\n```bash\ncat mine.yaml | tee copy\n"
    )
    for step in steps(text + "false | cat\n```\n"):
        if step.text.startswith("false"):
            with pytest.raises(subprocess.CalledProcessError):
                reader.do(step)
        else:
            reader.do(step)
    assert (tmp_path / "said").read_text() == "here\n" and (tmp_path / "copy").read_text() == "a: 1\n"
