//! A door in front of one port: a TCP proxy that a test can shut. For what one client alone is cut off from.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// An open door. It is gone when this is dropped.
#[derive(Debug)]
pub struct Door {
    port: u16,
    open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Door {
    /// A door to what listens at a port of this machine.
    ///
    /// # Errors
    /// When there is no port for it.
    pub async fn to(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let open = watch::Sender::new(true);
        let own = listener.local_addr()?.port();
        let task = tokio::spawn(serve(listener, port, open.subscribe()));
        Ok(Self { port: own, open, task })
    }

    /// Where the door is, as a base URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Breaks what goes through it, and lets nothing through until it is opened.
    pub fn shut(&self) {
        self.open.send_replace(false);
    }

    /// Lets everything through.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, port: u16, open: watch::Receiver<bool>) {
    while let Ok((mut incoming, _)) = listener.accept().await {
        let mut open = open.clone();
        if !*open.borrow() {
            continue;
        }
        tokio::spawn(async move {
            let Ok(mut outgoing) = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await else { return };
            tokio::select! {
                // Both ends see how it ended.
                _ = copy_bidirectional(&mut incoming, &mut outgoing) => {}
                _ = open.wait_for(|open| !open) => {}
            }
        });
    }
}
