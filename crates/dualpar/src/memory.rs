//! The program's buffer of a call: pieces of memory in the order of the data.

use crate::plan::Range;
use std::marker::PhantomData;

/// Pieces of memory, by address.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    pieces: &'a [Range],
    of: PhantomData<&'a mut [u8]>,
}

impl<'a> Memory<'a> {
    /// # Safety
    /// The pieces (offset: address) can be read and written by nobody else for as long as this exists.
    #[must_use]
    pub unsafe fn new(pieces: &'a [Range]) -> Memory<'a> {
        Memory { pieces, of: PhantomData }
    }

    /// Its beginning.
    #[must_use]
    pub fn begin(&self) -> Cursor<'a> {
        Cursor { pieces: self.pieces, at: 0 }
    }
}

/// A place in memory, which goes on with what is put or taken there.
#[derive(Debug)]
pub struct Cursor<'a> {
    pieces: &'a [Range],
    at: u64,
}

impl Cursor<'_> {
    /// Puts `bytes` there; what has no room is left out.
    pub fn put(&mut self, mut bytes: &[u8]) {
        while let Some((place, len)) = self.next(bytes.len()) {
            // SAFETY: within a piece, as `Memory::new` was promised.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, len) };
            bytes = &bytes[len..];
        }
    }

    /// Takes what is there; where nothing is, `room` stays as it is.
    pub fn take(&mut self, mut room: &mut [u8]) {
        while let Some((place, len)) = self.next(room.len()) {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(place, room.as_mut_ptr(), len) };
            room = &mut room[len..];
        }
    }

    fn next(&mut self, wanted: usize) -> Option<(*mut u8, usize)> {
        while self.pieces.first().is_some_and(|piece| self.at >= piece.len) {
            self.pieces = &self.pieces[1..];
            self.at = 0;
        }
        let piece = self.pieces.first().filter(|_| wanted > 0)?;
        let len = ((piece.len - self.at) as usize).min(wanted);
        let place = (piece.offset + self.at) as *mut u8;
        self.at += len as u64;
        Some((place, len))
    }
}
