//! Devices that pass on to another one what they do not do themselves.

#[doc(hidden)]
pub use braid_format::{ByteOffset, Bytes};

/// Methods of [`Device`](crate::Device) that call the same one of a field:
/// `pass_on!(inner: info read flush)`. What is not named is what the trait says, or is written out
/// beside it: that [`Device::sever`](crate::Device::sever),
/// [`Device::reservations`](crate::Device::reservations) and the ways past the methods go on to the
/// device below, or do not, is for each to choose.
#[macro_export]
macro_rules! pass_on {
    (@info $inner:tt) => {
        fn info(&self) -> &$crate::DeviceInfo {
            self.$inner.info()
        }
    };
    (@read $inner:tt) => {
        fn read(
            &self,
            at: $crate::pass_on::ByteOffset,
            buf: &mut [u8],
        ) -> ::core::result::Result<(), $crate::DeviceError> {
            self.$inner.read(at, buf)
        }
    };
    (@write $inner:tt) => {
        fn write(
            &self,
            at: $crate::pass_on::ByteOffset,
            buf: &[u8],
        ) -> ::core::result::Result<(), $crate::DeviceError> {
            self.$inner.write(at, buf)
        }
    };
    (@flush $inner:tt) => {
        fn flush(&self) -> ::core::result::Result<(), $crate::DeviceError> {
            self.$inner.flush()
        }
    };
    (@compare_and_write $inner:tt) => {
        fn compare_and_write(
            &self,
            at: $crate::pass_on::ByteOffset,
            expected: &[u8],
            new: &[u8],
        ) -> ::core::result::Result<$crate::CawOutcome, $crate::DeviceError> {
            self.$inner.compare_and_write(at, expected, new)
        }
    };
    (@discard $inner:tt) => {
        fn discard(
            &self,
            at: $crate::pass_on::ByteOffset,
            len: $crate::pass_on::Bytes,
        ) -> ::core::result::Result<(), $crate::DeviceError> {
            self.$inner.discard(at, len)
        }
    };
    (@write_zeroes $inner:tt) => {
        fn write_zeroes(
            &self,
            at: $crate::pass_on::ByteOffset,
            len: $crate::pass_on::Bytes,
        ) -> ::core::result::Result<(), $crate::DeviceError> {
            self.$inner.write_zeroes(at, len)
        }
    };
    (@deallocate $inner:tt) => {
        fn deallocate(
            &self,
            at: $crate::pass_on::ByteOffset,
            len: $crate::pass_on::Bytes,
        ) -> ::core::result::Result<bool, $crate::DeviceError> {
            self.$inner.deallocate(at, len)
        }
    };
    (@lock_byte $inner:tt) => {
        fn lock_byte(
            &self,
            byte: u64,
        ) -> ::core::result::Result<
            ::core::option::Option<$crate::ByteLockGuard>,
            $crate::DeviceError,
        > {
            self.$inner.lock_byte(byte)
        }
    };
    (@byte_locked $inner:tt) => {
        fn byte_locked(&self, byte: u64) -> ::core::result::Result<bool, $crate::DeviceError> {
            self.$inner.byte_locked(byte)
        }
        fn byte_held(&self, byte: u64) -> ::core::result::Result<bool, $crate::DeviceError> {
            self.$inner.byte_held(byte)
        }
        fn settle_byte(&self, byte: u64) -> ::core::result::Result<bool, $crate::DeviceError> {
            self.$inner.settle_byte(byte)
        }
    };
    (@reservations $inner:tt) => {
        fn reservations(&self) -> ::core::option::Option<&dyn $crate::Reservations> {
            self.$inner.reservations()
        }
    };
    (@sever $inner:tt) => {
        fn sever(&self) {
            self.$inner.sever();
        }
    };
    (@lease $inner:tt) => {
        fn lease(&self, until: ::std::time::Instant) {
            self.$inner.lease(until);
        }
    };
    (@answers_within $inner:tt) => {
        fn answers_within(&self, time: ::std::time::Duration) {
            self.$inner.answers_within(time);
        }
    };
    ($inner:tt: $($method:ident)+) => {
        $($crate::pass_on!(@$method $inner);)+
    };
}
