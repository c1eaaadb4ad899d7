//! Lets `cargo build` link the module on macOS, where symbols of Python are looked up when it loads.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
