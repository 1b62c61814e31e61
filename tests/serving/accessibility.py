"""An audit that runs inside a page: names of controls, references, headings, sizes, and contrast by computation.

What it looks for is of WCAG 2.2: 1.3.1, 1.4.3 (contrast of text), 1.4.11 (borders of controls), 2.5.8 (size of
targets), 3.1.1, 4.1.2. `page.evaluate(AUDIT)` gives the faults, as sentences, and how many pieces of text it looked at.
"""

from pathlib import Path

AUDIT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
