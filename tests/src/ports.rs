//! Ports for nodes. They come from below the range that the kernel gives to outgoing connections, so that
//! a node which starts again finds its port free: no connection of anybody can sit on it meanwhile.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Result, bail};

const FIRST: u16 = 15_000;
const LAST: u16 = 31_999;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port on loopback that nobody listens on and that this process gives to nobody else.
///
/// # Errors
/// When the whole range is taken.
pub fn free_port() -> Result<u16> {
    let span = LAST - FIRST + 1;
    // Processes that run at the same time begin at different places.
    let start = (std::process::id() % u32::from(span)) as u16;
    for _ in 0..span {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (u32::from(start) + u32::from(offset) * 7).rem_euclid(u32::from(span)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {LAST}")
}
