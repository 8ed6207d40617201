# make builds everything but the tests; make extras first installs what MPI, Fortran and train_unet3d's brains need; make install installs
# it into PREFIX; make demo and make test run the two scripts of the README.
BUILD ?= build
PREFIX ?= /usr/local
# Ninja looks at a thousand files faster than make does. A build folder keeps the generator that it has.
export CMAKE_GENERATOR ?= $(if $(shell command -v ninja 2>/dev/null),Ninja,Unix Makefiles)
# Uses all cores, unless make was called with -j: an inner make then shares its jobs, and Ninja, which may not, gets their number.
asked = $(filter -j%,$(MAKEFLAGS))
JOBS = $(if $(asked),$(if $(shell ls $(BUILD)/build.ninja 2>/dev/null),$(asked)),-j $(shell nproc))

all: configure
	+cmake --build $(BUILD) $(JOBS)

# Always, since libraries may have been installed meanwhile; a build that has the tests keeps them.
configure:
	cmake -S . -B $(BUILD) $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DBUILD_TESTING=OFF)

extras:
	./scripts/setup.sh extras
	+$(MAKE) all

demo:
	./scripts/demo.sh

test:
	./scripts/test.sh

install: all
	cmake --install $(BUILD) --prefix "$(PREFIX)"

clean:
	rm -rf $(BUILD)

.PHONY: all configure extras install demo test clean
