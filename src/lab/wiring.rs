//! Joins the two namespaces: addresses, routes and rules of the picture in `mod.rs`.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use rustix::net::netdevice::name_to_index;

use super::{
    GATEWAY_INSIDE, GATEWAY_V4, GATEWAY_V6, LabUnavailable, Namespace,
    namespace::sysctl,
    netlink::{Hop, Netlink, Prefix, TABLE_LOCAL, TABLE_MAIN},
};

const WORLD_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const WORLD_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xfe);
const LINK_LOCAL: Prefix = Prefix(IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0)), 10);

/// `lo` is the first device of every namespace (`LOOPBACK_IFINDEX`).
const LO: u32 = 1;

pub(super) fn join(gateway: &Namespace, world: &Namespace) -> Result<(), LabUnavailable> {
    gateway.run(prepare).map_err(LabUnavailable::at("prepare the gateway's namespace"))?;
    world.run(prepare).map_err(LabUnavailable::at("prepare the world's namespace"))?;
    gateway
        .run(|| Netlink::open()?.add_veth("up0", "w0", world.descriptor()))
        .map_err(LabUnavailable::at("join the namespaces by a veth pair"))?;
    world.run(wire_world).map_err(LabUnavailable::at("give the world its addresses and routes"))?;
    gateway.run(wire_gateway).map_err(LabUnavailable::at("give the gateway's host its addresses and routes"))
}

/// What must hold before the first link is up: IPv6 on, no waiting for duplicate addresses, no reverse-path filter (with
/// every address local, every source looks foreign).
fn prepare() -> io::Result<()> {
    for sysctl_of in ["all", "default", "lo"] {
        sysctl(&format!("ipv6/conf/{sysctl_of}/disable_ipv6"), "0")?;
    }
    for sysctl_of in ["all", "default"] {
        sysctl(&format!("ipv6/conf/{sysctl_of}/accept_dad"), "0")?;
        sysctl(&format!("ipv4/conf/{sysctl_of}/rp_filter"), "0")?;
    }
    Netlink::open()?.set_up(LO)
}

/// Gives the gateway's host another address.
pub(super) fn add_gateway_address(gateway: &Namespace, address: IpAddr) -> io::Result<()> {
    gateway.run(|| Netlink::open()?.add_address(LO, Prefix::host(address)))
}

fn wire_gateway() -> io::Result<()> {
    let up0 = index_of("up0")?;
    let mut netlink = Netlink::open()?;
    netlink.add_address(LO, Prefix::host(GATEWAY_INSIDE.into()))?;
    netlink.add_address(up0, Prefix::host(GATEWAY_V4.into()))?;
    netlink.add_address(up0, Prefix::host(GATEWAY_V6.into()))?;
    netlink.set_up(up0)?;
    // The kernel adds this route as well, but for IPv6 later, from a work queue; until then the address is the world's.
    netlink.add_route(Prefix::host(GATEWAY_V6.into()), LO, Hop::Own)?;
    netlink.add_route(Prefix::host(WORLD_V4.into()), up0, Hop::Link)?;
    netlink.add_route(
        Prefix::ALL_V4,
        up0,
        Hop::Via { neighbour: WORLD_V4.into(), source: GATEWAY_V4.into() },
    )?;
    netlink.add_route(Prefix::ALL_V6, up0, Hop::Via { neighbour: WORLD_V6.into(), source: GATEWAY_V6.into() })
}

fn wire_world() -> io::Result<()> {
    let w0 = index_of("w0")?;
    let mut netlink = Netlink::open()?;
    netlink.add_address(w0, Prefix::host(WORLD_V4.into()))?;
    netlink.add_address(w0, Prefix(WORLD_V6.into(), 64))?;
    netlink.set_up(w0)?;

    // The kernel looks into the local table first; then the gateway's addresses would count as the world's own. The order
    // is turned round before "everything is local" goes in.
    for gateway in [IpAddr::V4(GATEWAY_V4), IpAddr::V6(GATEWAY_V6)] {
        netlink.add_route(Prefix::host(gateway), w0, Hop::Link)?;
        netlink.add_rule(10, Prefix::host(gateway), TABLE_MAIN)?;
    }
    netlink.add_rule(20, LINK_LOCAL, TABLE_MAIN)?;
    for all in [Prefix::ALL_V4, Prefix::ALL_V6] {
        netlink.add_rule(100, all, TABLE_LOCAL)?;
        netlink.delete_rule(0, all, TABLE_LOCAL)?;
        netlink.add_route(all, LO, Hop::Own)?;
    }
    Ok(())
}

fn index_of(link: &str) -> io::Result<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    Ok(name_to_index(socket, link)?)
}
