//! Makes the protocol's types from `proto/federation.proto`, without a `protoc` to install.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/federation.proto");
    let files = protox::compile(["federation.proto"], ["proto"])?;
    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
