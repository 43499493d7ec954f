# Eleven megabytes are packed by four threads and unpacked again.
set -e
seq 1500000 > plain
xz -T4 --block-size=1MiB -k plain
sha256sum plain.xz
xz -T4 -dc plain.xz | cmp - plain
