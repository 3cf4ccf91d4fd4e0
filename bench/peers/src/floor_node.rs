//! One of the floor's processes: what it is sent it appends to a file and syncs, and nothing else.
//!
//! A follower is sent bytes, and answers with how many are synced. The leader is sent records by clients, each behind
//! the number of the call; it sends them on to both followers, syncs them itself, and answers with the number once two of
//! the three have them. Whatever has come meanwhile goes with the next write and sync.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use holdfast_bench::own_process::input_ended;
use parking_lot::{Condvar, Mutex};

use crate::args::FloorNodeArgs;

/// What one call appends.
pub const RECORD_BYTES: usize = 1024;
/// The number of a call.
pub const NUMBER_BYTES: usize = 8;
/// What is read at a time.
const READ_BYTES: usize = 1 << 20;

/// Runs one, until whoever started it lets go of its standard input.
pub async fn run(args: &FloorNodeArgs) -> Result<()> {
    let listener = TcpListener::bind(args.listen)?;
    let file = File::options().create_new(true).append(true).open(&args.file)?;
    if args.followers.is_empty() {
        thread::spawn(move || ended("follower", follow(&listener, file)));
    } else {
        let leader = Arc::new(Leader::default());
        let followers = args.followers.iter().map(TcpStream::connect).collect::<Result<Vec<_>, _>>()?;
        leader.start(listener, file, followers)?;
    }
    input_ended().await;
    Ok(())
}

/// A thread ends when its peer does; anything else is told.
fn ended(name: &str, result: Result<()>) {
    if let Err(error) = result {
        #[allow(clippy::print_stderr)] // It is its log.
        {
            eprintln!("{name}: {error:#}");
        }
    }
}

fn follow(listener: &TcpListener, mut file: File) -> Result<()> {
    let (mut leader, _) = listener.accept()?;
    leader.set_nodelay(true)?;
    let (mut buffer, mut synced) = (vec![0; READ_BYTES], 0_u64);
    loop {
        let read = leader.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..read])?;
        file.sync_data()?;
        synced += read as u64;
        leader.write_all(&synced.to_le_bytes())?;
    }
}

#[derive(Debug, Default)]
struct Leader {
    waiting: Mutex<Waiting>,
    wake: Condvar,
    progress: Mutex<Progress>,
}

/// What waits for the next write.
#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    calls: Vec<Call>,
}

/// A call, by its client's connection and its number there.
#[derive(Debug)]
struct Call {
    connection: usize,
    number: [u8; NUMBER_BYTES],
}

#[derive(Debug, Default)]
struct Progress {
    /// How many bytes are synced: here, and at each follower.
    synced: [u64; 3],
    /// Calls that are not answered, by where in the file they end.
    calls: VecDeque<(u64, Call)>,
    connections: Vec<TcpStream>,
}

impl Leader {
    fn start(self: &Arc<Self>, listener: TcpListener, file: File, followers: Vec<TcpStream>) -> Result<()> {
        for (number, follower) in followers.iter().enumerate() {
            follower.set_nodelay(true)?;
            let (leader, follower) = (Arc::clone(self), follower.try_clone()?);
            thread::spawn(move || ended("a follower's answers", leader.hear(follower, number + 1)));
        }
        let leader = Arc::clone(self);
        thread::spawn(move || ended("writer", leader.write(file, followers)));
        let leader = Arc::clone(self);
        thread::spawn(move || ended("listener", leader.accept(&listener)));
        Ok(())
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) -> Result<()> {
        loop {
            let (client, _) = listener.accept()?;
            client.set_nodelay(true)?;
            let connection = {
                let mut progress = self.progress.lock();
                progress.connections.push(client.try_clone()?);
                progress.connections.len() - 1
            };
            let leader = Arc::clone(self);
            thread::spawn(move || ended("a client's calls", leader.take(client, connection)));
        }
    }

    /// Takes the calls of one client.
    fn take(&self, mut client: TcpStream, connection: usize) -> Result<()> {
        let (mut buffer, mut filled) = (vec![0; READ_BYTES], 0);
        loop {
            let read = client.read(&mut buffer[filled..])?;
            if read == 0 {
                return Ok(());
            }
            filled += read;
            let whole = filled - filled % (NUMBER_BYTES + RECORD_BYTES);
            {
                let mut waiting = self.waiting.lock();
                for call in buffer[..whole].chunks_exact(NUMBER_BYTES + RECORD_BYTES) {
                    let (number, record) = call.split_first_chunk().context("a number")?;
                    waiting.bytes.extend_from_slice(record);
                    waiting.calls.push(Call { connection, number: *number });
                }
            }
            self.wake.notify_one();
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
    }

    /// Writes and syncs whatever waits, again and again.
    fn write(&self, mut file: File, mut followers: Vec<TcpStream>) -> Result<()> {
        let mut end = 0;
        loop {
            let Waiting { bytes, calls } = {
                let mut waiting = self.waiting.lock();
                self.wake.wait_while(&mut waiting, |waiting| waiting.calls.is_empty());
                std::mem::take(&mut *waiting)
            };
            {
                let mut progress = self.progress.lock();
                for (number, call) in (1..).zip(calls) {
                    progress.calls.push_back((end + number * RECORD_BYTES as u64, call));
                }
            }
            followers.iter_mut().try_for_each(|follower| follower.write_all(&bytes))?;
            file.write_all(&bytes)?;
            file.sync_data()?;
            end += bytes.len() as u64;
            self.synced(0, end)?;
        }
    }

    /// Hears how far a follower is.
    fn hear(&self, mut follower: TcpStream, place: usize) -> Result<()> {
        let mut synced = [0; 8];
        while follower.read_exact(&mut synced).is_ok() {
            self.synced(place, u64::from_le_bytes(synced))?;
        }
        Ok(())
    }

    /// Answers the calls that two of three have synced.
    fn synced(&self, place: usize, end: u64) -> Result<()> {
        let mut progress = self.progress.lock();
        progress.synced[place] = end;
        let mut ends = progress.synced;
        ends.sort_unstable();
        let majority = ends[1];
        let mut answers: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        while let Some((_, call)) = progress.calls.pop_front_if(|(end, _)| *end <= majority) {
            answers.entry(call.connection).or_default().extend_from_slice(&call.number);
        }
        for (connection, numbers) in answers {
            progress.connections[connection].write_all(&numbers)?;
        }
        Ok(())
    }
}
