#!/bin/sh
# A hook of mmdebstrap: makes of Debian's packages in $1 what gcr.io/distroless/python3-debian12 has.
# No shell, no package manager; one file for each package in status.d, certificates, root and nonroot.
set -eu
root=$1
unwanted="debconf dpkg mawk openssl readline-common tar"
mkdir -p "$root/var/lib/dpkg/status.d" "$root/etc/ssl/certs"
for deb in "$root"/var/cache/apt/archives/*.deb; do
	package=$(dpkg-deb --field "$deb" Package)
	case " $unwanted " in
	*" $package "*)
		dpkg-deb --fsys-tarfile "$deb" | tar --list | grep -v '/$' | sed "s#^\.#$root#" |
			tr '\n' '\0' | xargs -0 rm -f
		;;
	*) dpkg-deb --field "$deb" >"$root/var/lib/dpkg/status.d/$package" ;;
	esac
done
cat "$root"/usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
echo 'root:x:0:0:root:/root:/sbin/nologin
nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >"$root/etc/passwd"
