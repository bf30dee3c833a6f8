//! The keys of an `identify` entry that describe a unix socket.

use super::mistake::quoted;
use super::reader::{Item, Table};
use crate::identity::Keys;
use crate::socket::{Owner, Socket};

/// `sun_path` holds 107 bytes and a NUL (unix(7)).
pub(super) const PATH_LIMIT: usize = 107;

/// What an entry says of a unix socket.
pub(super) struct Unix {
    /// The socket, and whether the entry describes its file.
    pub(super) socket: Option<(Socket, bool)>,
    /// How many keys describe its file; they know nobody.
    pub(super) settings: usize,
    /// Whether `unix` is written, right or wrong.
    written: bool,
}

pub(super) fn read(table: &mut Table<'_>) -> Unix {
    let unix = table.take("unix");
    let (mode, owner) = (table.take("mode"), table.take("owner"));
    let settings = usize::from(mode.is_some()) + usize::from(owner.is_some());
    let path = unix.as_ref().and_then(path);
    let mode = mode.map_or(Some(Socket::OPEN), |item| self::mode(&item));
    let owner = owner.map(|item| self::owner(&item));
    let socket = match (path, mode, owner) {
        (Some(path), Some(mode), None | Some(Some(_))) => {
            Some((Socket { path, mode, owner: owner.flatten() }, settings > 0))
        }
        _ => None,
    };
    Unix { socket, settings, written: unix.is_some() }
}

impl Unix {
    /// Reports keys that do not go together.
    pub(super) fn fits(&self, keys: &Keys, item: &Item<'_>) -> bool {
        let names_unix = self.written || keys.listener.as_ref().is_some_and(|name| name.starts_with("unix:"));
        if self.written && keys.listener.is_some() {
            item.mistake("`unix` and `listener` are two words for one thing", "remove one of them");
        } else if names_unix && keys.source.is_some() {
            item.mistake("a client of a unix socket has no address", "remove `source`");
        } else if names_unix && keys.asks_for_certificate() {
            item.mistake("a client of a unix socket shows no certificate", "know it by the socket alone");
        } else if !names_unix && (keys.uid.is_some() || keys.gid.is_some()) {
            let what = format!(
                "only clients of unix sockets have a `{}`",
                if keys.uid.is_some() { "uid" } else { "gid" }
            );
            item.mistake(what, "write the socket too: unix = \"/run/tidegate/s/agent-7/proxy.sock\"");
        } else if !self.written && self.settings > 0 {
            item.mistake(
                "`mode` is that of a unix socket",
                "write the socket too, as `unix`; `owner` belongs to it as well",
            );
        } else {
            return true;
        }
        false
    }
}

fn path(item: &Item<'_>) -> Option<std::sync::Arc<str>> {
    let path = item.string()?;
    if !path.starts_with('/') || path.ends_with('/') || path.len() > PATH_LIMIT || path.contains('\0') {
        let what = format!("a unix socket needs an absolute path of at most {PATH_LIMIT} bytes");
        item.mistake(what, "write \"/run/tidegate/s/agent-7/proxy.sock\"");
        return None;
    }
    Some(path.into())
}

fn mode(item: &Item<'_>) -> Option<u32> {
    let text = item.string()?;
    let digits = text.len() == 3 || (text.len() == 4 && text.starts_with('0'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| digits && !text.starts_with('+'));
    if mode.is_none() {
        item.mistake(format!("{} is no mode", quoted(text)), "write \"0660\", in quotes");
    }
    mode
}

fn owner(item: &Item<'_>) -> Option<Owner> {
    let text = item.string()?;
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let id = |text: &str| text.parse::<u32>().ok().filter(|id| *id < u32::MAX && !text.starts_with('+'));
    let owner = match (id(user), group.map(id)) {
        (Some(uid), None) => Some(Owner { uid, gid: None }),
        (Some(uid), Some(Some(gid))) => Some(Owner { uid, gid: Some(gid) }),
        (None, _) | (_, Some(None)) => None,
    };
    if owner.is_none() {
        // Names are looked up in files that a container may not have.
        item.mistake(format!("{} is no owner", quoted(text)), "write \"1000\" or \"1000:1000\", in numbers");
    }
    owner
}
