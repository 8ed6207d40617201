# make builds everything but the tests; make extras first installs what MPI, Fortran and train_unet3d's brains need; make install installs
# it into PREFIX; make demo and make test run the two scripts of the README.
BUILD ?= build
PREFIX ?= /usr/local
# Uses all cores, unless make was called with -j: the inner make then shares its jobs.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j $(shell nproc))

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
