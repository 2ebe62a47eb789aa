# The image: one static binary, the public authorities, and nothing else. Less than 8 MB, no shell, no libc, any user id, a read-only root.
#
#   docker build -t redleader .
#
# For another architecture build on a machine (or an emulation) of it, as `docker buildx build --platform` does: the
# compiler's own target is used, so that every proc macro and the C of `ring` are built by what is in the image.
# Two builds of one commit with the same SOURCE_DATE_EPOCH give the same binary, and with a builder that sets the times
# of files (`--timestamp`, `rewrite-timestamp=true`) the same image.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY examples examples
COPY benches benches
# Cargo.toml names it, so cargo wants to see it.
COPY tests/e2e/main.rs tests/e2e/
COPY src src
ARG SOURCE_DATE_EPOCH=0
# A static binary: `crt-static` with the target named, since without a name it would apply to proc macros as well. On
# x86-64 it is one that can be loaded anywhere (static-pie), and its relocations are packed, which are a twentieth of it
# otherwise; on arm64 Rust makes one with a fixed place, which has none. Paths of this build are not a part of it.
RUN target=$(rustc -vV | sed -n 's/^host: //p') \
    && export RUSTFLAGS="-C target-feature=+crt-static --remap-path-prefix=/src= --remap-path-prefix=${CARGO_HOME:-/root/.cargo}=cargo" \
    && cargo rustc --release --locked --bin redleader --target "$target" --target-dir /target \
        -- -C link-arg=-Wl,-z,pack-relative-relocs \
    && install -D -m 755 "/target/$target/release/redleader" /image/redleader \
    && touch -d "@$SOURCE_DATE_EPOCH" /image/redleader

FROM scratch
ARG VERSION=0.2.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="redleader" \
      org.opencontainers.image.description="Leader election over a quorum of independent Redis nodes: sidecar, process wrapper and library" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /image/ /
# The public authorities, for managed servers behind rediss://.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
# Any other user id works as well, as on OpenShift.
USER 65532:65532
EXPOSE 9797
ENTRYPOINT ["/redleader"]
CMD ["run"]
