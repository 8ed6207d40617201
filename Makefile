# make builds everything but the tests; make install installs it into PREFIX; make demo and make test run the two scripts of the README.
BUILD ?= build
PREFIX ?= /usr/local
# Uses all cores, unless make was called with -j: the inner make then shares its jobs.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j $(shell nproc))

all: $(BUILD)/CMakeCache.txt
	+cmake --build $(BUILD) $(JOBS)

$(BUILD)/CMakeCache.txt:
	cmake -S . -B $(BUILD) -DBUILD_TESTING=OFF

demo:
	./scripts/demo.sh

test:
	./scripts/test.sh

install: all
	cmake --install $(BUILD) --prefix "$(PREFIX)"

clean:
	rm -rf $(BUILD)

.PHONY: all install demo test clean
