//! TLS 1.3 around a channel, where both sides show a certificate that the same authority has signed.

use std::io::{self, BufReader, IoSlice, Read, Write};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, Resumption};
use rustls::crypto::{ring, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, DigitallySignedStruct, Error, RootCertStore,
    ServerConfig, ServerConnection, SideData, SignatureScheme, StreamOwned,
};

use crate::wire::{Channel, Wire};

/// Of what comes, taken from the socket at once: rustls itself would ask for 4 KiB.
const READ_BYTES: usize = 256 << 10;
/// Of what goes, encrypted before it is handed over: many records in one call.
const WRITE_BYTES: usize = 256 << 10;

/// Who this node is, and whom it trusts.
pub struct Identity {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Identity {
    /// PEM. Err says what of it cannot be used.
    pub fn new(certificate: &[u8], key: &[u8], authority: &[u8]) -> Result<Self, String> {
        let said = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let chain: Vec<CertificateDer> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|error| said("certificate", &error))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| said("key", &error))?;
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(authority) {
            let root = root.map_err(|error| said("authority", &error))?;
            roots.add(root).map_err(|error| said("authority", &error))?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let readers = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| said("authority", &error))?;
        let of_own = |error: Error| said("certificate and key", &error);
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(of_own)?
            .with_client_cert_verifier(readers)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(of_own)?;
        server.send_tls13_tickets = 0; // connections are kept
        let holders = Arc::new(Signed { roots, provider });
        let mut client = ClientConfig::builder_with_provider(holders.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(of_own)?
            .dangerous()
            .with_custom_certificate_verifier(holders)
            .with_client_auth_cert(chain, key)
            .map_err(of_own)?;
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        Ok(Identity {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    /// The side that was asked. What the other shows is good once this returns.
    pub fn accept(&self, wire: Wire) -> io::Result<Box<dyn Channel>> {
        let connection = ServerConnection::new(self.server.clone()).map_err(io::Error::other)?;
        opened(connection, wire)
    }

    /// The side that asks. What the other thinks of this node's certificate shows with the first byte from there.
    pub fn connect(&self, wire: Wire) -> io::Result<Box<dyn Channel>> {
        let nobody = ServerName::try_from("node").expect("a name"); // nobody looks at it
        let connection =
            ClientConnection::new(self.client.clone(), nobody).map_err(io::Error::other)?;
        opened(connection, wire)
    }
}

fn opened<C, S>(mut connection: C, wire: Wire) -> io::Result<Box<dyn Channel>>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>> + Send + 'static,
    S: SideData + 'static,
{
    connection.set_buffer_limit(Some(WRITE_BYTES));
    let mut stream = StreamOwned::new(
        connection,
        Buffered(BufReader::with_capacity(READ_BYTES, wire)),
    );
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(Box::new(stream))
}

impl<C, S> Channel for StreamOwned<C, Buffered>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>> + Send,
    S: SideData,
{
    fn wire(&mut self) -> &mut Wire {
        self.sock.0.get_mut()
    }
}

struct Buffered(BufReader<Wire>);

impl Read for Buffered {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Buffered {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.get_mut().write(from)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.get_mut().write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Who signed a holder's certificate counts, and no name in it: nodes are reached by address.
#[derive(Debug)]
struct Signed {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Signed {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let shown = ParsedCertificate::try_from(shown)?;
        verify_server_cert_signed_by_trust_anchor(
            &shown,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not offered".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, shown, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
