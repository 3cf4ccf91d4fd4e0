//! The three containers of `docker-compose.yml`, under a project name and ports of their own.
//!
//! The test uses the very file that users start from; what differs comes in through the variables that the file
//! names. Whatever happens, dropping [`Containers`] takes containers, volumes and network away again.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_tests::ports::free_port;

/// The services of the compose file, in the order of their ports.
pub const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// Generous, because a busy machine with two cores starts three containers and a build at the same time.
const HEALTHY_WITHIN: Duration = Duration::from_secs(90);

/// Three running containers of one compose project.
pub struct Containers {
    compose: Vec<&'static str>,
    project: String,
    ports: [u16; 3],
}

impl Containers {
    /// Creates network, volumes and containers from the image that exists; never builds one.
    pub fn up() -> Result<Containers> {
        let containers = Containers {
            compose: compose_command()?,
            project: format!("holdfast-test-{}", uuid::Uuid::new_v4().simple()),
            ports: [free_port()?, free_port()?, free_port()?],
        };
        // The value exists before anything is started, so that a start that fails half-way is taken down as well.
        containers
            .compose(&["up", "-d", "--no-build"])
            .context("compose up; is there an image? scripts/image-offline.sh makes one")?;
        Ok(containers)
    }

    /// Where the API of `node` is published, as a base URL.
    pub fn url(&self, node: &str) -> String {
        format!("http://127.0.0.1:{}", self.ports[place(node)])
    }

    /// SIGKILL to the processes of these nodes at the same moment: no goodbye to their peers.
    pub fn kill(&self, nodes: &[&str]) -> Result<()> {
        self.all("kill", nodes)
    }

    /// Starts containers that were killed, on the volumes they had.
    pub fn start(&self, nodes: &[&str]) -> Result<()> {
        self.all("start", nodes)
    }

    /// SIGSTOP, in effect: the container keeps its connections and does nothing.
    pub fn pause(&self, node: &str) -> Result<()> {
        self.all("pause", &[node])
    }

    /// Lets a paused container go on.
    pub fn go_on(&self, node: &str) -> Result<()> {
        self.all("unpause", &[node])
    }

    /// Has the node end by itself, and starts it again.
    pub fn restart(&self, node: &str) -> Result<()> {
        let container = self.container(node)?;
        docker(&["restart", "--time", "30", &container]).map(drop)
    }

    /// Takes the container out of the project's network: nobody reaches it, nor it anybody.
    pub fn disconnect(&self, node: &str) -> Result<()> {
        docker(&["network", "disconnect", &self.network(), &self.container(node)?]).map(drop)
    }

    /// Puts it back, under the name by which its peers look for it.
    pub fn connect(&self, node: &str) -> Result<()> {
        docker(&["network", "connect", "--alias", node, &self.network(), &self.container(node)?]).map(drop)
    }

    /// As compose calls the network of the file.
    fn network(&self) -> String {
        format!("{}_cluster", self.project)
    }

    fn all(&self, command: &str, nodes: &[&str]) -> Result<()> {
        let containers = nodes.iter().map(|node| self.container(node)).collect::<Result<Vec<_>>>()?;
        let mut arguments = vec![command];
        arguments.extend(containers.iter().map(String::as_str));
        docker(&arguments).map(drop)
    }

    /// Takes the container of a node and its volume away, for good.
    pub fn wipe(&self, node: &str) -> Result<()> {
        docker(&["rm", "--force", &self.container(node)?])?;
        let volume = format!("{}_data-{}", self.project, node.trim_start_matches("node-"));
        docker(&["volume", "rm", &volume]).map(drop)
    }

    /// Makes a container again that was taken away, with an empty volume. The others are left as they are.
    pub fn make_again(&self, node: &str) -> Result<()> {
        self.compose(&["up", "-d", "--no-build", "--no-deps", "--no-recreate", node]).map(drop)
    }

    /// Runs `holdfast` in the container of a node, as an operator does; what it printed.
    pub fn holdfast(&self, node: &str, arguments: &[&str]) -> Result<String> {
        let container = self.container(node)?;
        docker(&[&["exec", &container, "holdfast"], arguments].concat())
    }

    /// Waits until the container's own health check passes.
    pub fn await_healthy(&self, node: &str) -> Result<()> {
        let container = self.container(node)?;
        let deadline = Instant::now() + HEALTHY_WITHIN;
        loop {
            let health = docker(&["inspect", "--format", "{{.State.Status}} {{.State.Health.Status}}", &container])?;
            match health.trim() {
                "running healthy" => return Ok(()),
                other if Instant::now() > deadline => {
                    bail!("{node} is `{other}` after {HEALTHY_WITHIN:?}, not healthy")
                }
                _ => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn container(&self, node: &str) -> Result<String> {
        let id = self.compose(&["ps", "-a", "-q", node])?;
        let id = id.trim();
        ensure!(!id.is_empty(), "{node} has no container");
        Ok(id.to_owned())
    }

    fn compose(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.compose[0]);
        command
            .args(&self.compose[1..])
            .args(["--project-name", &self.project])
            .args(arguments)
            .current_dir(repository())
            .env("HOLDFAST_PORT_A", self.ports[0].to_string())
            .env("HOLDFAST_PORT_B", self.ports[1].to_string())
            .env("HOLDFAST_PORT_C", self.ports[2].to_string());
        run(command)
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            match self.compose(&["logs", "--no-color", "--tail", "60"]) {
                Ok(logs) => eprintln!("---- the nodes' last lines\n{logs}"),
                Err(error) => eprintln!("no logs: {error:#}"),
            }
        }
        if let Err(error) = self.compose(&["down", "--volumes", "--timeout", "2"]) {
            eprintln!("{} is not fully taken down: {error:#}", self.project);
        }
    }
}

/// Whether a Docker engine answers.
pub fn engine_runs() -> bool {
    docker(&["info"]).is_ok()
}

fn place(node: &str) -> usize {
    NODES.iter().position(|name| *name == node).expect("a node of the compose file")
}

/// The plugin where it is installed, else the older command of its own.
fn compose_command() -> Result<Vec<&'static str>> {
    for command in [vec!["docker", "compose"], vec!["docker-compose"]] {
        let mut version = Command::new(command[0]);
        version.args(&command[1..]).arg("version");
        if run(version).is_ok() {
            return Ok(command);
        }
    }
    bail!("neither `docker compose` nor `docker-compose` is installed")
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn docker(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("docker");
    command.args(arguments);
    run(command)
}

fn run(mut command: Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}: {}", String::from_utf8_lossy(&stderr).trim());
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}
