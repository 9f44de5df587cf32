# Two commands are all that a new machine needs: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test lint browser docs constraints clean

demo: $(VENV)/.installed
	$(BIN)/coreplay demo

test: lint browser
	$(BIN)/pytest -n 3 --dist loadgroup

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The page of a report is tested in Chromium. Where it is missing and can be installed it is; else those tests are skipped.
browser:
	@{ command -v chromium && command -v chromedriver; } > /dev/null \
		|| { apt-get update && apt-get install --yes chromium chromium-driver; } > /dev/null 2>&1 \
		|| echo 'no Chromium: install the packages chromium and chromium-driver to test the page of a report, too'

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "coreplay needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch $(VENV)/.installed $(VENV)/.installed-docs $@

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --constraint constraints.txt --editable '.[docs]'
	touch $(VENV)/.installed $@

# The pins, made anew from the ranges of pyproject.toml with every extra.
constraints:
	rm -rf $(VENV)/pins && $(PYTHON) -m venv $(VENV)/pins
	$(VENV)/pins/bin/pip --quiet install torch==2.13.0
	$(VENV)/pins/bin/pip --quiet install '.[flower,trackers,docs,dev]'
	{ sed -n '/^#/p' constraints.txt; $(VENV)/pins/bin/pip freeze --exclude coreplay | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) dist build demo site
