# make builds; make demo and make test call the two scripts of the README.
BUILD ?= build

all: $(BUILD)/CMakeCache.txt
	cmake --build $(BUILD) -j

$(BUILD)/CMakeCache.txt:
	cmake -S . -B $(BUILD)

demo:
	./scripts/demo.sh

test:
	./scripts/test.sh

clean:
	rm -rf $(BUILD)

.PHONY: all demo test clean
