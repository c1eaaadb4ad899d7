#!/usr/bin/env bash
# Makes the figures of README and book from runs of the program (some minutes with the build), and the screenshots
# where Chromium is installed:
#
#     docs/images/make.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
profile=${PROFILE:-release}
cargo build --profile "$profile" --example pictures --bin whimbrel
built=$(pwd)/target/$profile
images=$(pwd)/docs/images
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r jobs/demo jobs/bayes "$work"
cd "$work"

whimbrel() { "$built/whimbrel" -q "$@"; }
picture() {
    local name=$1
    shift
    "$built/examples/pictures" "$@" > "$images/$name.svg"
}
# A variant of a job: its name, the job, and a script of sed.
variant() { sed "s/^name = .*/name = \"$1\"/; $3" "$2" > "$1.toml"; }

whimbrel --out demo-run
picture demo field_norm2 "How far from where pooled EM stops" \
    "100 clients that differ, three in four a round, one-level dithering; em holds all rows" demo-run/{em,dem,fedem}

# Naive compression: the fewer levels, the higher the floor.
everyone='s/^participation = .*/participation = 1.0/'
variant exact demo/dem.toml "$everyone; s/^codec = .*/codec = \"exact\"/"
variant 8-levels demo/dem.toml "$everyone; s/levels = 1/levels = 8/"
variant 1-level demo/dem.toml "$everyone"
whimbrel compare exact.toml 8-levels.toml 1-level.toml --out stall
picture stall field_norm2 "Naive compression stalls" \
    "dem, 100 clients that differ, all in every round: compressed messages leave a floor" stall/{exact,8-levels,1-level}

# Memories on the way up.
variant no-memory demo/dem.toml ""
variant memory-from-0 demo/fedem.toml '/^\[uplink\]/a start = "zero"'
variant memory demo/fedem.toml ""
whimbrel compare no-memory.toml memory-from-0.toml memory.toml --out memory-runs
picture memory field_norm2 "A memory removes the floor" \
    "One-level dithering, three clients in four a round; memories start at zero or at the clients' first vectors" \
    memory-runs/{no-memory,memory-from-0,memory}

# Memories on the way down.
down='$a \\n[downlink]\nrule = "RULE"\ncodec = { kind = "dithering", levels = 1, norm = 2 }'
variant exact-down demo/fedem.toml ""
variant no-down-memory demo/fedem.toml "${down/RULE/detached}"
variant down-memory demo/fedem.toml "${down/RULE/preserved}"
whimbrel compare exact-down.toml no-down-memory.toml down-memory.toml --out down-runs
picture downlink field_norm2 "A memory on the way down" \
    "Exact downlink 44.7 Mbit; compressed updates and a downlink memory 4.4 Mbit each" \
    down-runs/{exact-down,no-down-memory,down-memory}

# A mixture of learners.
whimbrel data make visits
for method in local fedavg fedmix; do
    variant $method visits/job.toml "s/kind = \"fedmix\"/kind = \"$method\"/; s/^path = \"/&visits\//"
done
sed -i '/^components/d' fedavg.toml local.toml
whimbrel compare fedmix.toml local.toml fedavg.toml --out visits-runs
picture mixture test_accuracy "One model, own models, a mixture of models" \
    "Accuracy on test rows of 19 wards: fedavg shares one model, local shares nothing, fedmix mixes two" \
    visits-runs/{fedmix,local,fedavg}

# Posteriors.
whimbrel run bayes/soul.toml --out soul
picture posteriors "Coverage of the intervals" "Posteriors state their uncertainty" \
    "fedsoul, 100 clients with 5 to 10 rows each: intervals of a level cover about that share of new targets" soul

# Screenshots of report and dashboard, by the tests in Chromium.
cd - > /dev/null
WHIMBREL_SCREENSHOTS=$images cargo test --profile "$profile" -p whimbrel --test all browser::
