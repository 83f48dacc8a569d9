# Each target is one command that can as well be typed.
PYTHON := .venv/bin/python

.PHONY: demo quick test lint golden bench site

demo:
	bash tools/demo.sh

# In the environment that demo or test have made: two minutes on two cores.
quick:
	bash tools/quick.sh

test:
	bash tools/test.sh

bench:
	benchmarks/run

site:
	bash tools/site.sh

# The others use the environment that demo or test have made.
lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# Tests never write what they expect; this does, and the difference is reviewed like code.
golden:
	$(PYTHON) -m tests.golden.rewrite
