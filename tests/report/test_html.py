"""Texts from outside stay texts."""

import html
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from coreplay.report.html import escaped
from coreplay.report.renderer import inline_svg
from coreplay.report.tables import Table
from coreplay.report.text import clean, csv_text

texts = st.text(st.characters(exclude_categories=[])) | st.sampled_from(
    ["</script><img src=x onerror=alert(1)>", "<!--<script>", "%{x}", "$\\frac", "\ud800", "'\"&lt;", "\u2028"]
)


@given(texts)
def test_html_comes_back_as_it_was(text):
    made = escaped(text)
    assert not set("<>\"'") & set(made)
    assert html.unescape(made) == clean(text)


def test_an_inline_svg_has_ids_of_its_own_and_keeps_its_texts():
    text = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="100pt" height="9pt">'
        '<metadata>x</metadata><defs><clipPath id="p1a"/><path id="m2b"/></defs>'
        '<g id="axes_1" clip-path="url(#p1a)"><use xlink:href="#m2b" style="fill: url(#h3c)"/>'
        "<text>id=&quot;m2b&quot; url(#p1a) &lt;b></text></g></svg>"
    )
    made = inline_svg(text, "0-x-")
    ids = [element.get("id") for element in ElementTree.fromstring(made).iter() if element.get("id")]
    assert ids == ["0-x-p1a", "0-x-m2b"]
    assert 'clip-path="url(#0-x-p1a)"' in made
    assert 'xlink:href="#0-x-m2b"' in made
    assert "fill: url(#0-x-h3c)" in made
    assert '>id="m2b" url(#p1a) &lt;b&gt;</text>' in made
    assert "metadata" not in made
    assert 'style="max-width: 140px"' in made


@given(texts)
def test_cleaning_twice_changes_nothing(text):
    once = clean(text)
    assert clean(once) == once
    assert "\n" not in once
    assert len(once) == len(text)


@given(st.lists(texts, min_size=2, max_size=2))
def test_markdown_stays_one_row(cells):
    table = Table("t", "t", "r", ("a", "b"), (tuple(cells),), ())
    lines = table.markdown().split("\n")
    assert len(lines) == 6
    assert lines[4].replace("\\\\", "").replace("\\|", "").count("|") == 3


def test_csv_quotes():
    assert csv_text([{"a": 'x,"y"\n'}]) == 'a\n"x,""y""\n"\n'
