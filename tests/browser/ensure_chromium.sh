#!/bin/sh
# The browser tests drive Debian's chromium; install it when it is missing, and say so.
set -eu
if [ -x /usr/bin/chromium ]; then exit 0; fi
if ! command -v apt-get >/dev/null; then
  echo "The browser tests need /usr/bin/chromium; install it with this system's package manager." >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then as_root="sudo"; fi
echo "Installing Debian's chromium for the browser tests ..."
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium fonts-dejavu-core fonts-noto-cjk >/dev/null
