# make builds all but the tests, make install puts it into PREFIX; make demo and make test call the two scripts of the README.
BUILD ?= build
PREFIX ?= /usr/local
# All cores, unless make was called with a -j of its own, of which the make within this one takes its share.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j $(shell nproc))

all: $(BUILD)/CMakeCache.txt
	+cmake --build $(BUILD) $(JOBS)

$(BUILD)/CMakeCache.txt:
	cmake -S . -B $(BUILD) -DBUILD_TESTING=OFF -DTERN_WERROR=OFF

demo:
	./scripts/demo.sh

test:
	./scripts/test.sh

install: all
	cmake --install $(BUILD) --prefix "$(PREFIX)"

clean:
	rm -rf $(BUILD)

.PHONY: all install demo test clean
