#!/bin/sh
# Unpacks header packages of Debian 13 (or of this machine's own release, if it is newer) into a
# folder. Nothing is installed and no root is needed: apt gets a sources list made from the
# machine's own one, and keeps its state inside the folder.
#
# usage: fetch_debian_headers.sh FOLDER PACKAGE...
set -eu

folder=$1
shift

fail() {
  echo "$*" >&2
  exit 1
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "no apt-get or dpkg-deb here"
# shellcheck disable=SC1091
. /etc/os-release
[ "${ID:-}" = debian ] || fail "not a Debian system"
own=${VERSION_CODENAME:-}
[ -n "$own" ] || fail "this Debian does not say its release name"
suite=$own
if [ "${VERSION_ID:-99}" -lt 13 ]; then suite=trixie; fi

mkdir -p "$folder/lists/partial" "$folder/archives/partial" "$folder/deb"
folder=$(cd "$folder" && pwd)

# Only stanzas of the distribution itself: they name its release as suite, have `main`, and are
# signed by its keyring. Third-party archives are left alone.
stanzas() {
  awk -v own="$own" -v suite="$suite" '
    BEGIN { RS = ""; FS = "\n" }
    {
      types = uris = signed = ""; has_suite = has_main = enabled = 1; has_suite = has_main = 0
      for (i = 1; i <= NF; i++) {
        if ($i ~ /^#/) continue
        key = tolower($i); sub(/:.*/, "", key)
        value = $i; sub(/^[^:]*:[ \t]*/, "", value)
        if (key == "types") types = value
        if (key == "uris") uris = value
        if (key == "signed-by") signed = value
        if (key == "enabled" && tolower(value) ~ /^(no|false|0)/) enabled = 0
        if (key == "suites" && (" " value " ") ~ (" " own " ")) has_suite = 1
        if (key == "components" && (" " value " ") ~ / main /) has_main = 1
      }
      if (!enabled || !has_suite || !has_main || (" " types " ") !~ / deb /) next
      if (signed != "" && signed !~ /debian-archive/) next
      print "Types: deb\nURIs: " uris "\nSuites: " suite "\nComponents: main"
      if (signed != "") print "Signed-By: " signed
      print ""
    }' "$1"
}

one_line() {
  awk -v own="$own" -v suite="$suite" '
    $1 == "deb" {
      signed = ""; first = 2
      if ($2 ~ /^\[/) {
        for (; first <= NF; first++) {
          if ($first ~ /signed-by=/) { signed = $first; sub(/.*signed-by=/, "", signed) }
          if ($first ~ /\]$/) { first++; break }
        }
        sub(/\]$/, "", signed)
      }
      if (signed != "" && signed !~ /debian-archive/) next
      if ($(first + 1) != own) next
      main = 0
      for (i = first + 2; i <= NF; i++) if ($i == "main") main = 1
      if (!main) next
      print "Types: deb\nURIs: " $first "\nSuites: " suite "\nComponents: main"
      if (signed != "") print "Signed-By: " signed
      print ""
    }' "$1"
}

sources=$folder/debian.sources
: >"$sources"
for file in /etc/apt/sources.list.d/*.sources; do
  [ -f "$file" ] && stanzas "$file" >>"$sources"
done
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -f "$file" ] && one_line "$file" >>"$sources"
done
[ -s "$sources" ] || fail "no Debian source for $own in /etc/apt"

apt() {
  apt-get -qq \
    -o "Dir::Etc::SourceList=$sources" -o Dir::Etc::SourceParts=- \
    -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder" -o "Dir::Cache::archives=$folder/archives" \
    -o APT::Sandbox::User= -o Acquire::Languages=none -o Acquire::Retries=1 \
    -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20 "$@"
}
apt update >&2
(cd "$folder/deb" && apt download "$@" >&2)
for deb in "$folder"/deb/*.deb; do
  dpkg-deb -x "$deb" "$folder"
done
# The lists are large and are not needed again.
rm -rf "$folder/lists" "$folder/archives" "$folder/pkgcache.bin" "$folder/srcpkgcache.bin"
