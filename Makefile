# Each target is one command that can as well be typed.
PYTHON := .venv/bin/python

.PHONY: demo quick test lint golden fuzz bench site lock bases dist release

demo:
	bash tools/demo.sh

# In the environment that demo or test have made: 45 s on two cores.
quick:
	bash tools/quick.sh

test:
	bash tools/test.sh

bench:
	benchmarks/run

site:
	bash tools/site.sh

# What images are made of, reviewed like code: the newest versions and their hashes; the digests of bases.
lock:
	bash tools/lock.sh --upgrade

bases:
	bash tools/bases.sh

# On a fresh clone, too.
dist:
	bash tools/dist.sh

# From the tag of the last commit: files, documentation, image, hashes, provenance. Publishes nothing.
release:
	bash tools/release.sh

# These use the environment that demo or test have made.
lint:
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# Ten minutes for each fuzzer, or: make fuzz SUBJECTS="frames hostfiles" SECONDS=3600. What is found is kept in
# tests/fuzz/corpus, where the tests try it each time.
SECONDS := 600
fuzz:
	$(PYTHON) -m tests.fuzz --seconds $(SECONDS) $(SUBJECTS)

# Tests never write what they expect; this does, and the difference is reviewed like code.
golden:
	$(PYTHON) -m tests.golden.rewrite
