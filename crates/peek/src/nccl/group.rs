//! A process group of either class.

use super::copies::{Copies, Parsed};
use super::counters::Distance;
use super::identity::Identity;
use super::legacy::{GroupReading, Legacy};
use super::nccl2::Nccl2;
use crate::clock::Instants;
use crate::memory::Range;

#[derive(Debug, Clone, PartialEq)]
pub enum Group {
    Legacy(Box<Legacy>),
    Nccl2(Box<Nccl2>),
}

impl Group {
    pub fn identity(&self) -> &Identity {
        match self {
            Self::Legacy(group) => &group.identity,
            Self::Nccl2(group) => &group.identity,
        }
    }

    pub fn identity_mut(&mut self) -> &mut Identity {
        match self {
            Self::Legacy(group) => &mut group.identity,
            Self::Nccl2(group) => &mut group.identity,
        }
    }

    pub fn address(&self) -> u64 {
        match self {
            Self::Legacy(group) => group.address,
            Self::Nccl2(group) => group.address,
        }
    }

    /// Returns the ranges whose copies must be equal in two consecutive reads.
    pub fn ranges(&self) -> Vec<Range> {
        match self {
            Self::Legacy(group) => group.ranges(),
            Self::Nccl2(group) => vec![group.range()],
        }
    }

    /// Returns ranges that the next reading probably needs.
    pub fn hints(&self) -> Vec<Range> {
        match self {
            Self::Legacy(group) => group.hints().collect(),
            Self::Nccl2(_) => Vec::new(),
        }
    }

    pub fn read(
        &self,
        copies: &Copies,
        distance: Option<Distance>,
        now: Instants,
    ) -> Parsed<GroupReading> {
        match self {
            Self::Legacy(group) => group.read(copies, distance, now),
            Self::Nccl2(group) => {
                let group = group.read(copies, now)?;
                Ok(GroupReading { group, local_id: None, nodes: Vec::new() })
            }
        }
    }
}
