#!/usr/bin/env bash
# Builds the image `holdfast-base:bookworm` without a container registry.
#
# `docker build .` starts from debian:bookworm-slim. Where no registry can be reached (an air-gapped site, a CI
# machine with package mirrors only), this script makes the same kind of base from Debian's own packages with
# debootstrap, over the mirror and proxy that this machine's apt is set up with.
#
# usage: scripts/base-image.sh [--force]        (root; an image that exists is left alone unless --force)
# env:   HOLDFAST_BASE_IMAGE   name of the image to make   (default holdfast-base:bookworm)
#        HOLDFAST_MIRROR       Debian mirror to take       (default: apt's own, else deb.debian.org)
set -euo pipefail

readonly suite=bookworm
readonly public_mirror=http://deb.debian.org/debian
readonly image=${HOLDFAST_BASE_IMAGE:-holdfast-base:$suite}

say() { printf 'base-image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The archive that apt already uses for this suite; `indextargets` reads every format of sources file.
apt_mirror() {
  # shellcheck disable=SC2016  # apt expands it
  apt-get indextargets --format '$(REPO_URI)' \
    "Created-By: Packages" "Component: main" "Codename: $suite" 2>/dev/null | sed -n '1s|/*$||p'
}

# debootstrap downloads with wget, which takes its proxy from the environment and knows nothing of apt's settings.
export_apt_proxy() {
  local proxy=
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  if [[ -n $proxy && $proxy != DIRECT ]]; then
    export http_proxy=$proxy https_proxy=${https_proxy:-$proxy}
  fi
}

install_debootstrap() {
  local missing=()
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || missing+=(debian-archive-keyring)
  ((${#missing[@]} == 0)) && return
  say "installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# What a server's base needs none of, and what would tell about the machine it was made on.
strip_root() {
  local root=$1
  find "$root/usr/share/doc" -type f ! -name copyright -delete
  find "$root/usr/share/doc" -xtype l -delete
  find "$root/usr/share/doc" -type d -empty -delete
  rm -rf "$root"/usr/share/{man,info,locale,lintian,linda,i18n}/* \
    "$root"/usr/lib/x86_64-linux-gnu/gconv "$root"/usr/lib/aarch64-linux-gnu/gconv \
    "$root"/var/cache/apt/* "$root"/var/cache/debconf/*-old "$root"/var/lib/apt/lists/* \
    "$root"/var/log/* "$root"/tmp/* "$root"/debootstrap
  rm -f "$root"/etc/resolv.conf "$root"/etc/hostname "$root"/etc/machine-id "$root"/var/lib/dpkg/*-old
  echo "deb $public_mirror $suite main" >"$root/etc/apt/sources.list"
}

work=
clean_up() {
  [[ -n $work ]] || return 0
  umount "$work"/root/{proc,sys} 2>/dev/null || true
  rm -rf --one-file-system "$work"
}

main() {
  docker info >/dev/null 2>&1 || die "no Docker engine answers"
  if [[ ${1:-} != --force ]] && docker image inspect "$image" >/dev/null 2>&1; then
    say "$image exists; --force makes it anew"
    return
  fi
  ((EUID == 0)) || die "debootstrap needs root"
  install_debootstrap
  export_apt_proxy

  local mirror=${HOLDFAST_MIRROR:-$(apt_mirror)}
  mirror=${mirror:-$public_mirror}
  trap clean_up EXIT
  work=$(mktemp -d "${TMPDIR:-/var/tmp}/holdfast-base.XXXXXX")

  say "debootstrap of $suite, about a minute"
  if ! debootstrap --variant=minbase --merged-usr "$suite" "$work/root" "$mirror" >"$work/log" 2>&1; then
    tail -n 20 "$work/log" >&2
    die "debootstrap failed"
  fi
  strip_root "$work/root"
  tar -C "$work/root" --numeric-owner -c . |
    docker import --change 'CMD ["bash"]' --message "Debian $suite, minbase" - "$image" >/dev/null
  say "made $image, $(($(docker image inspect --format '{{.Size}}' "$image") / 1000000)) MB"
}

main "$@"
