//! A sandbox in a network namespace of its own, attached to the scene's gateway by the built program.

use std::{
    fs,
    os::fd::AsRawFd,
    path::Path,
    process::{Child, Command, Stdio},
};

use hickory_proto::rr::RecordType;
use serde_json::Value;
use tidegate::lab::{HostFile, Namespace};

use super::{
    adapter::fill_in,
    case::{Case, Input, Step, Target},
};
use crate::support::{Scene, TestAuthority, ask_from, eventually};

/// A name server as a container has one; it does not matter which: every question arrives at the gateway.
const NAME_SERVER: &str = "192.0.2.53";

/// A namespace that is attached for as long as this lives.
pub struct Inside {
    namespace: Namespace,
    attach: Child,
}

/// Whether a case acts inside a sandbox, and nothing but its network has to be the sandbox's.
pub fn is_needed(case: &Case) -> bool {
    case.layer == "transparent" || acts_inside(&case.input)
}

fn acts_inside(input: &Input) -> bool {
    match input {
        Input::Tcp { to, .. } => *to == Target::Transparent,
        // A command that does more may write to files, which are the host's here.
        Input::Shell { cmd, at: Some(at) } if at == "sandbox" => {
            cmd.split(';').all(|part| part.trim().starts_with("dig "))
        }
        Input::Multi { steps } => {
            steps.iter().any(|step| matches!(step, Step::Do(input) if acts_inside(input)))
        }
        _ => false,
    }
}

impl Inside {
    /// Attaches the sandboxes of a case, its own first. Those beside it have looked up what the case says.
    pub fn all(case: &Case, scene: &Scene) -> Vec<Inside> {
        let own = case.policy.get("sandbox").and_then(Value::as_str).unwrap_or("s1");
        let mut all = vec![Inside::attach(scene, own)];
        for (other, its) in case.policy.get("other").and_then(Value::as_object).into_iter().flatten() {
            let inside = Inside::attach(scene, other);
            for name in its["lookups"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                let server = format!("{NAME_SERVER}:53").parse().unwrap();
                ask_from(&inside.namespace, server, name, RecordType::A).unwrap();
            }
            all.push(inside);
        }
        all
    }

    fn attach(scene: &Scene, sandbox: &str) -> Inside {
        let namespace = Namespace::new().unwrap();
        let file = format!("/proc/{}/fd/{}", std::process::id(), namespace.descriptor().as_raw_fd());
        let said = scene.gateway().dir().join(format!("attach-{sandbox}"));
        #[expect(clippy::disallowed_methods, reason = "the built program")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["attach", "--sandbox", sandbox, "--netns", &file, "--config"]);
        command.arg(scene.gateway().config_file()).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(fs::File::create(&said).unwrap());
        let mut attach = scene.lab().gateway().spawn(&mut command).unwrap();
        eventually("the namespace is attached", || {
            let said = fs::read_to_string(&said).unwrap();
            assert!(attach.try_wait().unwrap().is_none(), "attach has ended: {said}");
            said.contains("is served").then_some(())
        });
        Inside { namespace, attach }
    }

    /// Where its clients are.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Runs a command inside, which knows of no proxy; its exit status.
    pub fn shell(&self, cmd: &str, authority: &TestAuthority, dir: &Path) -> Option<i32> {
        let resolv_conf = dir.join("resolv.conf");
        fs::write(&resolv_conf, format!("nameserver {NAME_SERVER}\n")).unwrap();
        let trusted = dir.join("authority.pem");
        fs::write(&trusted, authority.pem()).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a real client of the corpus")]
        let mut command = Command::new("/bin/bash");
        command.args(["-c", &fill_in(cmd)]).env_clear();
        command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("CURL_CA_BUNDLE", &trusted).env("SSL_CERT_FILE", &trusted);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let files = [HostFile { at: "/etc/resolv.conf".into(), shows: resolv_conf }];
        let status = self.namespace.spawn_seeing(&files, &mut command).and_then(|mut child| child.wait());
        status.expect("a shell").code()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.attach.kill();
        let _ = self.attach.wait();
    }
}
