#!/usr/bin/env bash
# Builds the bed for torch releases that fetch.py has fetched: `build.sh DIRECTORY VERSION…`, two at a time.
#
#   DIRECTORY/VERSION/harness              harness.cpp (its commands are described there)
#   DIRECTORY/VERSION/harness-copy         the same, not position independent (copy_relocation.c); from 2.0 on
#   DIRECTORY/VERSION/lib/libharness.so    the same as a library, to be the second torch of a process
#   DIRECTORY/VERSION/lib/libcudart.so.N   runtime.cpp, also under the names of the driver's two libraries
#   DIRECTORY/impostor/libc10_cuda.so      impostor.c
#   DIRECTORY/nccl/libfakenccl.so          nccl.cpp
#
# A version's folder depends on nothing outside it and can be moved. What is newer than its sources is left alone.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bed=$(cd "$1" && pwd)
shift

# A folder's CUDA release, `11.0`, `12` or `13`, as fetch.py found it in libc10_cuda.so.
cuda_of() { sed -n 's/^ "cuda": "\(.*\)",$/\1/p' "$bed/$1/fetched.json"; }

up_to_date() {
  local target=$1 source
  shift
  for source in "$@"; do [ "$target" -nt "$source" ] || return 1; done
}

build_runtime() { # CUDA
  local out="$bed/cuda-${1%%.*}/libcudart.so.$1"
  up_to_date "$out" "$here/runtime.cpp" "$here/build.sh" && return
  g++ -std=c++17 -O1 -fPIC -shared -Wall -Wextra "$here/runtime.cpp" -o "$out" \
    -Wl,-soname,"libcudart.so.$1" -Wl,-rpath,'$ORIGIN' -Wl,--disable-new-dtags \
    -Wl,--version-script=<(echo "libcudart.so.$1 { global: *; };")
}

build_version() { # VERSION
  local version=$1 dir="$bed/$1" cuda major minor patch number std=c++17 abi=1
  up_to_date "$dir/built" "$here"/{harness.cpp,runtime.cpp,copy_relocation.c,build.sh} "$dir/fetched.json" && return
  cuda=$(cuda_of "$version")
  IFS=. read -r major minor patch <<<"$version"
  number=$((major * 10000 + minor * 100 + patch))
  # PyTorch's wheels took the new ABI of std::string with 2.7; its headers want C++20 from 2.9 on.
  [ $number -ge 20700 ] || abi=0
  [ $number -lt 20900 ] || std=c++20

  cp "$bed/cuda-${cuda%%.*}/libcudart.so.$cuda" "$dir/lib/"
  ln -sf "libcudart.so.$cuda" "$dir/lib/libcuda.so.1"
  ln -sf "libcudart.so.$cuda" "$dir/lib/libnvidia-ml.so.1"

  local object="$dir/harness.o"
  # The headers are PyTorch's and CUDA's; their warnings are not ours (-isystem).
  g++ -std=$std -O1 -fPIC -Wall -DTORCH=$number -D_GLIBCXX_USE_CXX11_ABI=$abi \
    -isystem "$dir/include" -isystem "$bed/cuda-${cuda%%.*}/include" -c "$here/harness.cpp" -o "$object"
  # Old-style RPATH, which libraries opened by name from within the wheel's obey too.
  local libraries=(-L"$dir/lib" -Wl,--no-as-needed -l:libc10_cuda.so -l:libc10.so -l:"libcudart.so.$cuda" -ldl -lpthread
    -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags)
  g++ "$object" -o "$dir/harness" "${libraries[@]}" -Wl,-rpath,'$ORIGIN/lib'
  g++ -shared "$object" -o "$dir/lib/libharness.so" "${libraries[@]}" -Wl,-rpath,'$ORIGIN'
  if [ $number -ge 20000 ]; then
    gcc -O1 -fno-pic -c "$here/copy_relocation.c" -o "$dir/copy_relocation.o"
    g++ -no-pie "$object" "$dir/copy_relocation.o" -o "$dir/harness-copy" "${libraries[@]}" -Wl,-rpath,'$ORIGIN/lib'
  fi
  touch "$dir/built"
  echo "torch $version on CUDA $cuda"
}

for cuda in $(for version in "$@"; do cuda_of "$version"; done | sort -u); do build_runtime "$cuda"; done
impostor="$bed/impostor/libc10_cuda.so"
if ! up_to_date "$impostor" "$here/impostor.c" "$here/build.sh"; then
  mkdir -p "$bed/impostor"
  gcc -O1 -fPIC -shared -Wall -Wextra "$here/impostor.c" -o "$impostor"
fi
nccl="$bed/nccl/libfakenccl.so"
if ! up_to_date "$nccl" "$here/nccl.cpp" "$here/build.sh"; then
  mkdir -p "$bed/nccl"
  g++ -std=c++17 -O1 -fPIC -shared -Wall -Wextra "$here/nccl.cpp" -o "$nccl"
fi
export -f build_version cuda_of up_to_date
export here bed
printf '%s\n' "$@" | xargs -P 2 -I{} bash -euo pipefail -c 'build_version {}'
