# One variable: SCALE=ci (minutes, the default) or SCALE=soak (a night).
SCALE ?= ci
export SCALE

.PHONY: help demo test bench e2e soak sim sim-mutants model faults

help:
	@echo "make demo    three nodes, three replicas: see an election, a hand-over, a crash, a lost node"
	@echo "make test    every check and test, with what they need installed first (as root)"
	@echo "make bench   the figures, beside go-redsync's, and the size of the binary"
	@echo "make e2e     the image and the chart on a real Kubernetes of this machine (as root); ROWS=K9 for some"
	@echo "make sim     the decisions in seeded worlds; SECONDS=600 for so long, SEED=7 tells one history"
	@echo "make sim-mutants   plants each bug that the protocol names, and shows that the simulator finds it"
	@echo "make faults  real processes under random faults; SEED=7 runs one schedule, BASE=7 a whole run, SCHEDULES=50 so many"
	@echo "make soak    make test with SCALE=soak: hours"
	@echo "make model   the smallest case, searched exhaustively"

demo:
	@tests/setup --demo
	@cargo build --quiet --profile bench-bin
	@target/bench-bin/redleader demo

test:
	@tests/run test

bench:
	@tests/run bench

# ROWS: words that the names of rows have; `cargo test --test e2e -- --list` names them.
e2e:
	@tests/run e2e $(ROWS)

# SECONDS, SEED, SEEDS, FIRST and LINES are read from the environment.
sim:
	@cargo test --profile sim --test sim histories -- --nocapture

sim-mutants:
	@tests/sim/mutants

# BASE, SEED and SCHEDULES are read from the environment.
faults:
	@tests/run faults

model:
	@cargo test --profile sim --test model -- --nocapture --test-threads=1

soak:
	@$(MAKE) test SCALE=soak
