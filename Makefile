# Tidewall. Two commands: `make demo` and `make test`. Each installs missing packages
# on a Debian 12 machine (as root) and is safe to repeat.

CARGO ?= cargo
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: demo test build install programs setup check loom sanitize instructions kernels clean

## demo: the main purpose, live: Tidewall beside Linux, from 10,000 packets/s to all that the link carries
demo:
	scripts/setup.sh demo
	$(CARGO) build --release --locked -p tidewall-cli
	./target/release/tidewall demo --out out/demo

## test: every test
test: setup
	scripts/test.sh

## build: optimised binaries in target/release
build:
	$(CARGO) build --release --locked

PREFIX ?= /usr/local
BUILD ?= target/release
VERSION = $(shell sed -n '/^\[workspace.package\]/,/^version/s/^version = "\(.*\)"/\1/p' Cargo.toml)
TO = $(DESTDIR)$(PREFIX)

## install: programs, library, header, pkg-config file and units, from `make build`, below DESTDIR and PREFIX
install:
	install -d $(TO)/bin $(TO)/lib/pkgconfig $(TO)/include $(TO)/lib/systemd/system
	install -m 755 $(BUILD)/tidewall $(BUILD)/tidewalld $(TO)/bin
	install -m 644 $(BUILD)/libtidewall.so $(TO)/lib
	install -m 644 packaging/tidewall.h $(TO)/include
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' packaging/tidewall.pc.in >$(TO)/lib/pkgconfig/tidewall.pc
	for unit in packaging/systemd/*; do sed 's|/usr/bin/|$(PREFIX)/bin/|' $$unit >$(TO)/lib/systemd/system/$${unit##*/}; done

## programs: compares Debian's servers and clients on Tidewall and on Linux; writes docs/compatibility.md (as root)
programs: setup
	scripts/compatibility.sh

## setup: installs the Debian packages that `make test` needs (as root only if one is missing)
setup:
	scripts/setup.sh test

## check: formatting, lints and documentation
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	python3 -B scripts/language.py

## loom: the memory model of the shared structures
loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test --profile loom --locked -p tidewall-receive -p tidewall-readiness --lib --target-dir target/loom loom_

## sanitize: the driver program, compiled for the host CPU, with every access checked (needs GCC's libasan)
sanitize:
	TIDEWALL_SANITIZE=1 $(CARGO) test --locked -p tidewall-device --target-dir target/sanitize --no-run
	TIDEWALL_SANITIZE=1 ASAN_OPTIONS=detect_leaks=0 CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="env LD_PRELOAD=$$(gcc -print-file-name=libasan.so)" \
		$(CARGO) test --locked -p tidewall-device --target-dir target/sanitize --lib --test demux_fuzz --test demux_emulated --test demux_parser

## instructions: counts the instructions of hot paths (valgrind; an emulator for the driver program), compares with the recorded counts
instructions:
	$(CARGO) build --release --locked -p tidewall-preload
	$(CARGO) bench --locked --no-fail-fast -p tidewall-device -p tidewall-protocol -p tidewall-atm -p tidewall-switch -p tidewall -p tidewall-preload \
		--bench driver_instructions --bench instructions --bench datagrams --bench descriptors --bench select --bench readiness --bench foreign -- --instructions

## kernels: real kernels with emulated network cards, in QEMU (as root; --kernel, --driver, --check in ARGS)
kernels: setup
	$(CARGO) build --release --locked -p tidewall-cli
	scripts/kernels.sh run $(ARGS)

clean:
	$(CARGO) clean
	rm -rf out
