# One variable: SCALE=ci (minutes, the default) or SCALE=soak (a night).
SCALE ?= ci
export SCALE

.PHONY: help demo test bench soak sim

help:
	@echo "make demo    three nodes, three replicas: see an election, a hand-over, a crash, a lost node"
	@echo "make test    every check and test, with what they need installed first (as root)"
	@echo "make bench   the figures, beside go-redsync's, and the size of the binary"
	@echo "make sim     the decisions in seeded worlds; SECONDS=600 for so long, SEED=7 tells one history"
	@echo "make soak    make test with SCALE=soak"

demo:
	@tests/setup --demo
	@cargo build --quiet --profile bench-bin
	@target/bench-bin/redleader demo

test:
	@tests/run test

bench:
	@tests/run bench

# SECONDS, SEED, SEEDS, FIRST and LINES are read from the environment.
sim:
	@cargo test --profile sim --test sim histories -- --nocapture

soak:
	@$(MAKE) test SCALE=soak
