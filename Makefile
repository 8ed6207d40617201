# make builds everything but the tests; make extras first installs what MPI, Fortran and train_unet3d's brains need; make install installs
# it into PREFIX, and make uninstall removes it; make demo and make test run the two scripts of the README; make dist writes the sources of
# the last commit into an archive; make deb builds Debian's packages; make html makes pages of the headers.
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
	cmake --install $(BUILD) --prefix "$(PREFIX)" --strip

# What the last install has written, then tern's own folders, the inner ones first.
uninstall:
	@test -e $(BUILD)/install_manifest.txt || { echo "make: nothing was installed from $(BUILD)" >&2; exit 1; }
	sed 's|^|$(DESTDIR)|' $(BUILD)/install_manifest.txt | xargs -d '\n' rm -f
	sed 's|^|$(DESTDIR)|; s|/[^/]*$$||' $(BUILD)/install_manifest.txt | grep '/tern\(/\|$$\)' | sort -ru | \
	    xargs -d '\n' rmdir --ignore-fail-on-non-empty 2>/dev/null || true
	rm $(BUILD)/install_manifest.txt

version = $(shell awk '/^.define TERN_VERSION_(MAJOR|MINOR|PATCH) / { printf "%s%s", dot, $$3; dot = "." }' include/tern/base.h)

dist:
	git archive --prefix=tern-$(version)/ HEAD | xz -T0 > tern-$(version).tar.xz

deb:
	./scripts/deb.sh

html:
	doxygen docs/Doxyfile
	@echo "make: build/html/index.html"

clean:
	rm -rf $(BUILD)

.PHONY: all configure extras install uninstall dist deb html demo test clean
