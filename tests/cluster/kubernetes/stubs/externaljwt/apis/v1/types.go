// Package v1 stands in for the gRPC types of an external signer of tokens, whose module registries
// may lack.
//
// It has what kube-apiserver names, and nothing else: one that is told of such a signer here ends
// at its first request.
package v1

import (
	"context"
	"errors"
	"time"
)

var errAbsent = errors.New("this kube-apiserver was built without a client of external signers")

type (
	// Timestamp is that of protobuf.
	Timestamp interface {
		CheckValid() error
		AsTime() time.Time
	}
	SignJWTRequest   struct{ Claims string }
	SignJWTResponse  struct{ Header, Signature string }
	FetchKeysRequest struct{}
	Key              struct {
		KeyId                    string
		Key                      []byte
		ExcludeFromOidcDiscovery bool
	}
	FetchKeysResponse struct {
		Keys               []*Key
		DataTimestamp      Timestamp
		RefreshHintSeconds int64
	}
	MetadataRequest  struct{}
	MetadataResponse struct{ MaxTokenExpirationSeconds int64 }
)

// ExternalJWTSignerClient refuses every request.
type ExternalJWTSignerClient struct{}

func NewExternalJWTSignerClient(any) ExternalJWTSignerClient { return ExternalJWTSignerClient{} }

func (ExternalJWTSignerClient) Sign(context.Context, *SignJWTRequest) (*SignJWTResponse, error) {
	return nil, errAbsent
}

func (ExternalJWTSignerClient) FetchKeys(
	context.Context, *FetchKeysRequest,
) (*FetchKeysResponse, error) {
	return nil, errAbsent
}

func (ExternalJWTSignerClient) Metadata(
	context.Context, *MetadataRequest,
) (*MetadataResponse, error) {
	return nil, errAbsent
}
