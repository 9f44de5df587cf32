"""Texts from outside stay texts."""

import html
import json

from hypothesis import given
from hypothesis import strategies as st

from coreplay.report.tables import Table, csv_text
from coreplay.report.texts import clean, embedded, escaped, label, wrapped

texts = st.text(st.characters(exclude_categories=[])) | st.sampled_from(
    ["</script><img src=x onerror=alert(1)>", "<!--<script>", "%{x}", "$\\frac", "\ud800", "'\"&lt;", "\u2028"]
)


@given(texts)
def test_html_comes_back_as_it_was(text):
    made = escaped(text)
    assert not set("<>\"'") & set(made)
    assert html.unescape(made) == clean(text)


@given(texts)
def test_labels_have_no_tags_and_survive_utf8(text):
    assert not set("<>") & set(label(text))
    assert set(wrapped(text).replace("<br>", "")).isdisjoint("<>")
    label(text).encode("utf-8")


@given(st.recursive(texts | st.floats() | st.integers(-9, 9), lambda c: st.lists(c) | st.dictionaries(texts, c)))
def test_embedded_json_can_not_end_its_element(data):
    made = embedded(data)
    assert not set("<>&\u2028\u2029") & set(made)
    assert made.isascii()
    json.loads(made)


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
