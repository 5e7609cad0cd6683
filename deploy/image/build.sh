#!/bin/sh
# Builds the image, compares its list of contents (SBOM) with it, and writes both to OUT:
#   sh deploy/image/build.sh
#   ENGINE  podman (default where it is there) or docker
#   BASE    an image of Debian or python:3.x-slim; `made` makes one from Debian's packages (mmdebstrap, as root)
#   OUT     build/image
# Python's packages come from the folder wheelhouse/ where it exists, else from the network; docs/how-to/container.md.
set -eu
cd "$(dirname "$0")/../.."
ENGINE=${ENGINE:-$(command -v podman docker | head -n 1)}
[ -n "$ENGINE" ] || { echo "needs podman or docker, found neither: install one, or give ENGINE=/path/to/it" >&2; exit 2; }
BASE=${BASE:-docker.io/library/debian:bookworm-slim}
OUT=${OUT:-build/image}
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || echo 0)}
export SOURCE_DATE_EPOCH
IMAGE=consilium:$VERSION
mkdir -p "$OUT"

# The times of files in layers: podman sets them all, docker (buildx) where it is asked to.
case $ENGINE in *podman) set -- --timestamp "$SOURCE_DATE_EPOCH" --format oci ;; *) set -- ;; esac

if [ "$BASE" = made ]; then
    BASE=localhost/consilium-base:bookworm
    mkdir -p "$OUT/base"
    mmdebstrap --quiet --variant=minbase --include=python3 \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        bookworm "$OUT/base/base.tar"
    printf 'FROM scratch\nADD base.tar /\nCMD ["/bin/sh"]\n' > "$OUT/base/Containerfile"
    "$ENGINE" build "$@" -f "$OUT/base/Containerfile" -t "$BASE" "$OUT/base"
    rm -r "$OUT/base"
fi

"$ENGINE" build "$@" --build-arg BASE="$BASE" --build-arg SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" \
    -f deploy/image/Containerfile -t "$IMAGE" .

run() { "$ENGINE" run --rm -i --network none --read-only --cap-drop all "$@"; }
run "$IMAGE" --version
run --entrypoint python "$IMAGE" - check /opt/consilium/sbom.cdx.json < deploy/image/sbom.py
run --entrypoint cat "$IMAGE" /opt/consilium/sbom.cdx.json > "$OUT/consilium-$VERSION.cdx.json"
rm -f "$OUT/consilium-$VERSION.tar"
case $ENGINE in *podman) set -- --quiet --format oci-archive ;; *) set -- ;; esac
"$ENGINE" save "$@" -o "$OUT/consilium-$VERSION.tar" "$IMAGE"
(cd "$OUT" && sha256sum "consilium-$VERSION.tar" "consilium-$VERSION.cdx.json" > SHA256SUMS && cat SHA256SUMS)
